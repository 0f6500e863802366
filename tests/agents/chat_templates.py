"""Chat templates of the shapes that are in use, written for these tests, and tokenizers that carry them.

What matters is how they treat a history: what they append, trim, move, strip and refuse.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rollenv.agents.tiny.model import build_tokenizer

CHATML = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

# A default system prompt; tools as JSON in it; neighbouring tool messages share one user block.
QWEN25 = """
{%- set given = messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + (messages[0].content if given else 'You are a helpful assistant.') -}}
{%- if tools -%}
{{- '\\n\\n# Tools\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for message in (messages[1:] if given else messages) -%}
  {%- if message.role == 'tool' -%}
    {%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# Thinking stays until the user speaks again, then it is dropped; tool messages do not count as the user.
QWEN3 = """
{%- if tools -%}
{{- '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if messages[0].role == 'system' else '') -}}
{%- for tool in tools -%}{{- (tool | tojson) + '\\n' -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- set ns = namespace(asked=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' -}}
  {%- elif message.role == 'assistant' -%}
    {%- set said = message.content -%}
    {%- set thought = '' -%}
    {%- if '</think>' in said -%}
      {%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
      {%- set said = said.split('</think>')[-1].lstrip('\\n') -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if loop.index0 > ns.asked and thought -%}
      {{- '<think>\\n' + thought + '\\n</think>\\n\\n' -}}
    {%- endif -%}
    {{- said + '<|im_end|>\\n' -}}
  {%- elif message.role == 'tool' -%}
    {%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
"""

# A date in the system turn, tools in the first user message, contents trimmed, tool results as JSON.
LLAMA3 = """
{{- bos_token -}}
{%- set given = messages[0].role == 'system' -%}
{%- if date_string is not defined -%}{%- set date_string = strftime_now('%d %b %Y %H:%M:%S') -%}{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n' -}}
{{- (messages[0].content | trim if given else '') + '<|eot_id|>' -}}
{%- set rest = messages[1:] if given else messages -%}
{%- if tools -%}
  {%- if rest[0].role != 'user' -%}{{- raise_exception('no first user message to put tools in') -}}{%- endif -%}
{%- endif -%}
{%- for message in rest -%}
  {%- if message.role == 'tool' -%}
    {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' -}}
  {%- else -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}
    {%- if tools and loop.first -%}
      {%- for tool in tools -%}{{- (tool | tojson(indent=4)) + '\\n\\n' -}}{%- endfor -%}
    {%- endif -%}
    {{- message.content | trim + '<|eot_id|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

# No system role, strict alternation, the assistant is called model, contents trimmed.
GEMMA = """
{{- bos_token -}}
{%- for message in messages -%}
  {%- if message.role not in ['user', 'assistant'] -%}
    {{- raise_exception(message.role + ' role not supported') -}}
  {%- endif -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') -}}
  {%- endif -%}
  {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' -}}
  {{- message.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""

# No opening for an answer, strict alternation, a space before answers, tools before the last user message.
MISTRAL = """
{{- bos_token -}}
{%- set given = messages[0].role == 'system' -%}
{%- set rest = messages[1:] if given else messages -%}
{%- set ns = namespace(turn=0, last=0) -%}
{%- for message in rest -%}{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for message in rest -%}
  {%- if message.role in ['user', 'assistant'] -%}
    {%- if (message.role == 'user') != (ns.turn % 2 == 0) -%}
      {{- raise_exception('After the optional system message, roles must alternate user/assistant') -}}
    {%- endif -%}
    {%- set ns.turn = ns.turn + 1 -%}
  {%- endif -%}
  {%- if message.role == 'user' -%}
    {%- if tools and loop.index0 == ns.last -%}
      {{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' -}}
    {%- endif -%}
    {%- set opening = messages[0].content + '\\n\\n' if given and loop.first else '' -%}
    {{- '[INST] ' + opening + message.content + ' [/INST]' -}}
  {%- elif message.role == 'assistant' -%}
    {{- ' ' + message.content | trim + eos_token -}}
  {%- else -%}
    {{- raise_exception('Only user, system and assistant roles are supported!') -}}
  {%- endif -%}
{%- endfor -%}
"""

# The answer's opening starts the thought, and no thought stays in a history.
DEEPSEEK = """
{{- bos_token -}}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}{{- message.content -}}
  {%- elif message.role == 'user' -%}{{- '<｜User｜>' + message.content -}}
  {%- elif message.role == 'assistant' -%}
    {%- set said = message.content.split('</think>')[-1] if '</think>' in message.content else message.content -%}
    {{- '<｜Assistant｜>' + said + '<｜end▁of▁sentence｜>' -}}
  {%- elif message.role == 'tool' -%}{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜><think>\\n' -}}{%- endif -%}
"""


@dataclass(frozen=True)
class Shape:
    """A chat template with the tokens of its family."""

    name: str
    template: str
    special: tuple[str, ...]
    eos: str
    bos: str = ""
    added: tuple[str, ...] = ()
    """Tokens of the vocabulary that are not special (``special=False``)."""
    sentencepiece: bool = False
    rewrites: bool = False
    """Whether it may change what a conversation without tools and system prompt said."""
    system_role: bool = True
    tool_role: bool = True
    takes_tools: bool = True


SHAPES = (
    Shape("chatml", CHATML, ("<|im_start|>", "<|im_end|>"), "<|endoftext|>", takes_tools=False),
    Shape("qwen2.5", QWEN25, ("<|im_start|>", "<|im_end|>"), "<|im_end|>", added=("<tool_call>", "</tool_call>")),
    Shape("qwen3", QWEN3, ("<|im_start|>", "<|im_end|>"), "<|im_end|>",
        added=("<think>", "</think>", "<tool_response>", "</tool_response>"), rewrites=True),
    Shape("llama3", LLAMA3,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "<|end_of_text|>"), "<|eot_id|>",
        bos="<|begin_of_text|>"),
    Shape("gemma", GEMMA, ("<start_of_turn>", "<end_of_turn>", "<pad>"), "<eos>", bos="<bos>", sentencepiece=True,
        system_role=False, tool_role=False, takes_tools=False),
    Shape("mistral", MISTRAL, ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"), "</s>", bos="<s>",
        sentencepiece=True, tool_role=False),
    Shape("deepseek", DEEPSEEK, ("<｜end▁of▁sentence｜>",), "<｜end▁of▁sentence｜>", bos="<｜begin▁of▁sentence｜>",
        added=("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
               "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        rewrites=True, takes_tools=False),
)  # fmt: skip

CORPUS = [
    "the user said hello to the assistant, and the answer was 42",
    "naïve 日本 🙂 <tool_response> think\n\n  the the",
]


@functools.cache
def tokenizer_for(shape: Shape) -> PreTrainedTokenizerBase:
    """A tokenizer of about 400 tokens with the shape's template and special tokens."""
    tokenizer = _sentencepiece() if shape.sentencepiece else build_tokenizer(CORPUS, 330)
    special = [t for t in (*shape.special, shape.eos, shape.bos) if t]
    tokenizer.add_special_tokens({"additional_special_tokens": list(dict.fromkeys(special))})
    tokenizer.add_tokens(list(shape.added))
    tokenizer.eos_token = shape.eos
    if shape.bos:
        tokenizer.bos_token = shape.bos
    tokenizer.chat_template = shape.template.strip("\n")
    return tokenizer


def _sentencepiece() -> PreTrainedTokenizerBase:
    """As Llama 2, Mistral and Gemma encode: a space opens the text, unknown characters fall back to bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=tokens, show_progress=False)
    tokenizer.train_from_iterator([text for text in CORPUS for _ in range(2)], trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    data = json.loads(tokenizer.to_str())
    # The trainer marks byte tokens as special; in real vocabularies they are ordinary tokens.
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] == "<unk>"]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), unk_token="<unk>")
