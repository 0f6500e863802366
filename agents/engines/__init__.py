"""Engines that run models, from token ids to token ids: in this process, with vLLM, several behind a router."""
