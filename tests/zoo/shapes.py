"""Chat templates of the published shapes of families that TRL's wheel has no template of."""

# Roles in headers, tools and calls as JSON behind a mark of Python.
LLAMA_4 = """{{- bos_token }}{%- if messages[0].role == 'system' -%}{%- set system = messages[0].content | trim -%}
{%- set messages = messages[1:] -%}{%- else -%}{%- set system = '' -%}{%- endif -%}
{%- if system or tools -%}{{- '<|header_start|>system<|header_end|>\\n\\n' ~ system -}}
{%- for tool in tools or [] -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}{{- '<|eot|>' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<|header_start|>' ~ ('ipython' if m.role == 'tool' else m.role) ~ '<|header_end|>\\n\\n' -}}
{%- if m.role == 'tool' -%}{{- m.content | tojson -}}{%- else -%}{{- m.content | trim -}}{%- endif -%}
{%- for call in m.tool_calls or [] -%}
{{- '{"name": "' ~ call.function.name ~ '", "parameters": ' ~ (call.function.arguments | tojson) ~ '}' -}}
{%- endfor -%}{{- '<|eot|>' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|header_start|>assistant<|header_end|>\\n\\n' -}}{%- endif -%}"""

# No opening of answers, ids of nine letters that the prompt shows, one call or text in an answer.
MISTRAL = """{{- bos_token -}}{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}
{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}{%- for m in messages -%}{%- if m.role == 'system' -%}
{{- '[SYSTEM_PROMPT]' ~ m.content ~ '[/SYSTEM_PROMPT]' -}}{%- elif m.role == 'user' -%}
{%- if tools and loop.index0 == ns.last -%}{{- '[AVAILABLE_TOOLS]' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' -}}
{%- endif -%}
{{- '[INST]' ~ m.content ~ '[/INST]' -}}{%- elif m.role == 'tool' -%}
{{- '[TOOL_RESULTS]{"content": ' ~ (m.content | tojson) ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' -}}
{%- elif m.tool_calls -%}{{- '[TOOL_CALLS][' -}}{%- for call in m.tool_calls -%}
{%- if call.id | length != 9 -%}{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') -}}
{%- endif -%}{{- '{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) -}}
{{- ', "id": "' ~ call.id ~ '"}' ~ (']' if loop.last else ', ') -}}{%- endfor -%}{{- eos_token -}}
{%- else -%}{{- m.content ~ eos_token -}}{%- endif -%}{%- endfor -%}"""

# The id of a call has its function's name.
KIMI = """{%- if tools -%}{{- '<|im_system|>tool_declare<|im_middle|>' ~ (tools | tojson) ~ '<|im_end|>' -}}
{%- endif -%}{%- for m in messages -%}{%- if m.role in ['system', 'tool'] -%}
{{- '<|im_system|>' ~ m.role ~ '<|im_middle|>' -}}{%- else -%}
{{- '<|im_' ~ m.role ~ '|>' ~ m.role ~ '<|im_middle|>' -}}{%- endif -%}
{%- if m.role == 'tool' -%}{{- '## Return of ' ~ m.tool_call_id ~ '\\n' -}}{%- endif -%}{{- m.content -}}
{%- if m.tool_calls -%}{{- '<|tool_calls_section_begin|>' -}}{%- for call in m.tool_calls -%}
{{- '<|tool_call_begin|>' ~ call.id ~ '<|tool_call_argument_begin|>' -}}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson -}}
{{- '<|tool_call_end|>' -}}{%- endfor -%}{{- '<|tool_calls_section_end|>' -}}{%- endif -%}{{- '<|im_end|>' -}}
{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}"""

# A separator behind the role.
PHI_4 = """{%- for m in messages -%}{{- '<|im_start|>' ~ m.role ~ '<|im_sep|>' ~ m.content ~ '<|im_end|>' -}}
{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}"""

# Calls in Hermes' form; a thought is shown while the tools of an answer run, and none is opened.
SMOLLM_3 = """{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}
{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{{- '<|im_start|>system\\n' ~ (messages[0].content if messages[0].role == 'system' else 'You are SmolLM.') -}}
{%- for tool in tools or [] -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}
{%- for m in messages -%}{%- if m.role == 'assistant' -%}{{- '<|im_start|>assistant\\n' -}}
{%- if m.reasoning_content and loop.index0 > ns.last -%}
{{- '<think>\\n' ~ m.reasoning_content ~ '\\n</think>\\n' -}}{%- endif -%}{{- m.content -}}
{%- for call in m.tool_calls or [] -%}
{{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) -}}
{{- '}\\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- elif m.role != 'system' -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

# Functions and calls as Python in elements; results have the role of an environment.
OLMO_3 = """{%- if messages[0].role != 'system' -%}{{- '<|im_start|>system\\nYou are Olmo.<functions>' -}}
{{- (tools | tojson if tools else '') ~ '</functions><|im_end|>\\n' -}}{%- endif -%}
{%- for m in messages -%}{%- if m.role == 'tool' -%}{{- '<|im_start|>environment\\n' ~ m.content ~ '<|im_end|>\\n' -}}
{%- elif m.role == 'assistant' -%}{{- '<|im_start|>assistant\\n' ~ m.content -}}{%- if m.tool_calls -%}
{{- '<function_calls>' -}}{%- for call in m.tool_calls -%}{{- call.function.name ~ '(' -}}
{%- for key, value in call.function.arguments.items() -%}{{- key ~ '=' ~ (value | tojson) -}}
{{- '' if loop.last else ', ' -}}{%- endfor -%}{{- ')' -}}{%- endfor -%}{{- '</function_calls>' -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}{%- else -%}{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content -}}
{{- ('<functions>' ~ (tools | tojson) ~ '</functions>' if tools and m.role == 'system' else '') ~ '<|im_end|>\\n' -}}
{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

# Roles between marks; calls in Hermes' form; results in a user's message.
GRANITE_4 = """{{- '<|start_of_role|>system<|end_of_role|>' -}}
{{- messages[0].content if messages[0].role == 'system' else 'You are a helpful assistant.' -}}
{%- for tool in tools or [] -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}{{- '<|end_of_text|>\\n' -}}
{%- for m in messages -%}{%- if m.role == 'tool' -%}
{{- '<|start_of_role|>user<|end_of_role|>\\n<tool_response>\\n' ~ m.content -}}
{{- '\\n</tool_response><|end_of_text|>\\n' -}}
{%- elif m.role != 'system' -%}{{- '<|start_of_role|>' ~ m.role ~ '<|end_of_role|>' ~ m.content -}}
{%- for call in m.tool_calls or [] -%}{{- '\\n' if m.content or not loop.first else '' -}}
{{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) -}}
{{- '}\\n</tool_call>' -}}{%- endfor -%}{{- '<|end_of_text|>\\n' -}}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}"""

# Answers in elements beside thoughts, of which a history keeps the answer.
HUNYUAN = """{{- '<｜hy_begin▁of▁sentence｜>' -}}{%- for m in messages -%}{%- if m.role == 'system' -%}
{{- m.content ~ '<｜hy_place▁holder▁no▁3｜>' -}}{%- elif m.role == 'assistant' -%}{%- set text = m.content -%}
{%- if '<answer>' in text -%}{%- set text = text.split('<answer>')[-1].split('</answer>')[0] | trim -%}{%- endif -%}
{{- '<｜hy_Assistant｜>' ~ text ~ '<｜hy_place▁holder▁no▁2｜>' -}}{%- else -%}{{- '<｜hy_User｜>' ~ m.content -}}
{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<｜hy_Assistant｜>' -}}{%- endif -%}"""

# An answer's opening begins its thought; a history keeps thoughts of the running loop; calls in elements.
MINIMAX = """{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}
{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{{- ']~!b[]~b]system\\n' ~ (messages[0].content if messages[0].role == 'system' else 'You are MiniMax.') -}}
{%- for tool in tools or [] -%}{{- '\\n<tool>' ~ (tool.function | tojson) ~ '</tool>' -}}{%- endfor -%}{{- '[e~[\\n' -}}
{%- for m in messages -%}{%- if m.role == 'user' -%}{{- ']~b]user\\n' ~ m.content ~ '[e~[\\n' -}}
{%- elif m.role == 'tool' -%}{{- ']~b]tool\\n<response>' ~ m.content ~ '</response>[e~[\\n' -}}
{%- elif m.role == 'assistant' -%}{{- ']~b]ai\\n' -}}{%- if m.reasoning_content and loop.index0 > ns.last -%}
{{- '<think>\\n' ~ m.reasoning_content ~ '\\n</think>\\n\\n' -}}{%- endif -%}{{- m.content -}}{%- if m.tool_calls -%}
{{- '\\n<minimax:tool_call>\\n' -}}{%- for call in m.tool_calls -%}{{- '<invoke name="' ~ call.function.name ~ '">' -}}
{%- for key, value in call.function.arguments.items() -%}{{- '<parameter name="' ~ key ~ '">' -}}
{{- (value if value is string else value | tojson) ~ '</parameter>' -}}{%- endfor -%}{{- '</invoke>\\n' -}}
{%- endfor -%}
{{- '</minimax:tool_call>' -}}{%- endif -%}{{- '[e~[\\n' -}}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- ']~b]ai\\n<think>\\n' -}}{%- endif -%}"""

# Thoughts and calls in elements of a name space.
SEED_OSS = """{%- if tools -%}{{- '<seed:bos>system\\n' ~ (tools | tojson) ~ '<seed:eos>' -}}{%- endif -%}
{%- for m in messages -%}{{- '<seed:bos>' ~ m.role ~ '\\n' -}}{%- if m.reasoning_content -%}
{{- '<seed:think>' ~ m.reasoning_content ~ '</seed:think>' -}}{%- endif -%}{{- m.content -}}
{%- for call in m.tool_calls or [] -%}{{- '<seed:tool_call>\\n<function=' ~ call.function.name ~ '>\\n' -}}
{%- for key, value in call.function.arguments.items() -%}
{{- '<parameter=' ~ key ~ '>' ~ (value if value is string else value | tojson) ~ '</parameter>\\n' -}}{%- endfor -%}
{{- '</function>\\n</seed:tool_call>' -}}{%- endfor -%}{{- '<seed:eos>' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<seed:bos>assistant\\n' -}}{%- endif -%}"""

# An empty thought before answers, also in the opening.
EXAONE_4 = """{%- if tools -%}{{- '[|system|]\\n' ~ (tools | tojson) ~ '[|endofturn|]\\n' -}}{%- endif -%}
{%- for m in messages -%}{{- '[|' ~ m.role ~ '|]\\n' -}}{%- if m.role == 'tool' -%}
{{- '<tool_result>' ~ m.content ~ '</tool_result>' -}}{%- elif m.role == 'assistant' -%}
{{- '<think>\\n\\n</think>\\n\\n' ~ m.content.split('</think>')[-1] -}}{%- for call in m.tool_calls or [] -%}
{{- '<tool_call>{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) -}}
{{- '}</tool_call>' -}}{%- endfor -%}{%- else -%}{{- m.content -}}{%- endif -%}{{- '[|endofturn|]\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '[|assistant|]\\n<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"""

# Roles in words.
ERNIE_4_5 = """{{- bos_token -}}{%- for m in messages -%}{%- if m.role == 'user' -%}{{- 'User: ' ~ m.content ~ '\\n' -}}
{%- elif m.role == 'assistant' -%}{{- 'Assistant: ' ~ m.content ~ '<|end_of_sentence|>' -}}{%- else -%}
{{- m.content ~ '\\n' -}}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant: ' -}}{%- endif -%}"""

# Each role has a token at its end.
DOTS_1 = """{%- set names = {'system': 'system', 'user': 'userprompt', 'assistant': 'response'} -%}
{%- for m in messages -%}{%- if m.role in names -%}
{{- '<|' ~ names[m.role] ~ '|>' ~ m.content ~ '<|endof' ~ names[m.role] ~ '|>' -}}
{%- endif -%}{%- endfor -%}{#- <|userprompt|> <|endofuserprompt|> <|endofresponse|> -#}
{%- if add_generation_prompt -%}{{- '<|response|>' -}}{%- endif -%}"""

# The end of a text ends an answer, and begins the chat.
OLMOE = """{{- '<|endoftext|>' -}}{%- for m in messages -%}{{- '<|' ~ m.role ~ '|>\\n' ~ m.content -}}
{{- '<|endoftext|>\\n' if m.role == 'assistant' else '\\n' -}}{%- endfor -%}{#- <|user|> -#}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"""

# No marks at all but the end of a text.
STARCODER_2 = """{%- for m in messages -%}{%- if m.role == 'assistant' -%}
{{- '### Response\\n' ~ m.content ~ '<|endoftext|>\\n' -}}{%- else -%}
{{- '### Instruction\\n' ~ m.content ~ '\\n\\n' -}}
{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{- '### Response\\n' -}}{%- endif -%}"""

SHAPES = {
    "llama4": LLAMA_4, "mistral": MISTRAL, "kimi": KIMI, "phi4": PHI_4, "smollm3": SMOLLM_3, "olmo3": OLMO_3,
    "granite": GRANITE_4, "hunyuan": HUNYUAN, "minimax": MINIMAX,
    "seed": SEED_OSS, "exaone": EXAONE_4, "ernie": ERNIE_4_5, "dots": DOTS_1, "olmoe": OLMOE, "starcoder": STARCODER_2,
}  # fmt: skip
