"""Engines that run models: in this process, with vLLM, several behind a router. Token ids in, token ids out."""
