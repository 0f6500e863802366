"""What servers say when a context is full, and what they say of other faults: ``(words, longest answer)``.

The first part of each list is collected from servers and from public reports; the second varies it.
"""

FULL: list[tuple[str, int | None]] = [
    (
        "context_length_exceeded This model's maximum context length is 8192 tokens. However, your "
        "messages resulted in 9000 tokens.",
        512,
    ),
    (
        "This model's maximum context length is 16385 tokens. However, you requested 17000 tokens (15000"
        " in the messages, 1000 in the functions, and 1000 in the completion).",
        1000,
    ),
    (
        "context_length_exceeded Your input exceeds the context window of this model. Please adjust your"
        " input and try again.",
        None,
    ),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300019 "
        "tokens. Please reduce the length of the messages.",
        None,
    ),
    (
        "string_above_max_length Invalid 'messages[1].content': string too long. Expected a string with "
        "maximum length 1048576, but got a string with length 1100000 instead.",
        None,
    ),
    ("tokens_limit_reached Request body too large for gpt-4o model. Max size: 8000 tokens.", None),
    ("model_max_prompt_tokens_exceeded prompt token count of 65204 exceeds the limit of 64000", None),
    ("The decoder prompt (length 9127) is longer than the maximum model length of 8192.", 512),
    ("max_tokens must be at least 1, got -12.", None),
    ("max_tokens must be at least 1, got -6837. (parameter=max_tokens, value=-6837)", 512),
    ("max_completion_tokens must be at least 1, got -1", 256),
    ("max_tokens must be at least 1, got 0.", 256),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length "
        "is 8192 tokens and your request has 8000 input tokens (512 > 8192 - 8000).",
        512,
    ),
    (
        "This model's maximum context length is 2048 tokens. However, your request has 1900 input "
        "tokens. Please reduce the length of the input messages. (parameter=input_tokens, value=8)",
        300,
    ),
    (
        "This model's maximum context length is 2048 tokens. However, your request has 8 input tokens "
        "plus 2045 'max_tokens'. Please reduce one or the other.",
        2045,
    ),
    ("Input length (11680) exceeds model's maximum context length (4096).", None),
    ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", None),
    (
        "Input length (9000 tokens) exceeds the maximum allowed length (8191 tokens). Use a shorter "
        "input or enable --allow-auto-truncate.",
        None,
    ),
    ("exceed_context_size_error the request exceeds the available context size, try increasing it", None),
    (
        "exceed_context_size_error request (9412 tokens) exceeds the available context size (8192 "
        "tokens), try increasing it",
        512,
    ),
    ("Requested tokens (9000) exceed context window of 8192", None),
    (
        "Illegal param: prefill 744 tokens exceed n_ctx_per_seq, try increasing total context size, "
        "adjusting RoPE, enabling context shifting, reducing parallel or reducing prefill tokens",
        None,
    ),
    (
        "validation Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: "
        "8000 `inputs` tokens and 512 `max_new_tokens`",
        512,
    ),
    ("validation Input validation error: `inputs` must have less than 8191 tokens. Given: 9000", 512),
    ("Input validation error: `inputs` must have less than 4095 tokens. Given: 5000", None),
    ("invalid_request_error prompt is too long: 201000 tokens > 200000 maximum", 1024),
    ("invalid_request_error prompt is too long: 201000 tokens > 200000 maximum", 64000),
    (
        "invalid_request_error input length and `max_tokens` exceed context limit: 190000 + 20000 > "
        "200000, decrease input length or `max_tokens` and try again",
        20000,
    ),
    ("messages.0.content: too many total text bytes: 9100000 > 9000000", None),
    ("Request size exceeds model context window", None),
    ("request_too_large Request exceeds the maximum allowed number of bytes. input too long", None),
    (
        "INVALID_ARGUMENT The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        65536,
    ),
    ("INVALID_ARGUMENT The input token count exceeds the maximum number of tokens allowed 1048576", None),
    ("The input token count (35868) exceeds the maximum number of tokens allowed (32768).", 65536),
    (
        "Unable to submit request because the input token count is 35868 but model only supports up to "
        "32768. Reduce the input token count and try again.",
        None,
    ),
    ("Your input context is too long", None),
    ("invalid_request_error Invalid request: Your request exceeded model token limit: 8192", None),
    ("Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)", None),
    ("Input token length too long", None),
    ("1261 Prompt exceeds max length", None),
    ("1261 Prompt 超长", None),
    ("1210 输入长度超过限制", None),
    ("invalid_parameter_error Range of input length should be [1, 30720]", None),
    (
        "InvalidParameter <400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        2000,
    ),
    ("<400> InternalError.Algo.InvalidParameter: Total message token length exceed model limit (1000000).", None),
    (
        "The sum of prompt length (8000), query length (0) and max_tokens (512) should not exceed "
        "max_num_tokens (8192)",
        512,
    ),
    ("The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)", 512),
    ("Please reduce the length of the messages or completion.", None),
    (
        "context_length_exceeded Please reduce the length of the messages or completion. Current length "
        "is 9000 while limit is 8192",
        None,
    ),
    ("Input length 131393 exceeds the maximum allowed input length of 131040 tokens.", None),
    ("Input is too long for requested model.", None),
    ("ValidationException The model returned the following errors: Input is too long for requested model.", None),
    (
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
        None,
    ),
    ("400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 11530", None),
    (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 8292. Try "
        "using a shorter prompt, or enabling prompt truncating.",
        None,
    ),
    (
        "too many tokens: size limit exceeded by 3521 tokens. Try using shorter or fewer inputs. The "
        "limit for this model is 128000 tokens.",
        None,
    ),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", None),
    (
        "3051 Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        None,
    ),
    ("The number of tokens in the prompt exceeds the model's maximum context length of 32768", None),
    ("The prompt is too long: 9000, model maximum context length: 8192", None),
    ("The prompt has 9000 tokens, but the configured context size is 8192 tokens", None),
    ("Prompt tokens (9000) exceeds context size (8192)", None),
    ("prompt too long; exceeded max context length by 4 tokens", None),
    ("the input length exceeds the context length", None),
    (
        "The number of tokens to keep from the initial prompt is greater than the context length. Try to"
        " load the model with a larger context length, or provide a shorter input",
        None,
    ),
    ("invalid params, context window exceeds limit (2013)", None),
    ("20015 length of prompt_tokens (9000) must be less than max_seq_len (8192).", 512),
    ("20015 The parameter is invalid. input_tokens + max_tokens must be less than or equal to 32768", None),
    ("Request prompt has 9000 tokens in total, larger than the model input length limit 8192.", None),
    (
        "invalid_input_argument the number of input tokens 9000 cannot exceed the total tokens limit "
        "8192 for this model",
        None,
    ),
    (
        "AiError: The estimated number of input and maximum output tokens (9000) exceeded this model "
        "context window limit (8192)",
        256,
    ),
    ("Total tokens of image and text exceed max message tokens", None),
    ("InvalidParameter Input length 9000 exceeds the maximum length 8192", None),
    ("336007 prompt tokens too long", None),
    ("336007 the max input characters is 4800", None),
    (
        "This model maximum context length is 2048 tokens. However, your messages resulted in over 3000 "
        "tokens and max_tokens is 512.",
        512,
    ),
    ("Conversation is too long, please start a new one", None),
    ("conversation length exceeded", None),
    ("Model context window is 128k tokens, you requested 256k tokens over the limit", None),
    ("Prompt too large for this model", None),
    ("The total number of tokens in the input exceeds the limit for this model", None),
    ("Input too long. Expected at most 4096 tokens, got 5000.", None),
    ("The sequence length is 9000, which is greater than the max sequence length 8192", None),
    ("the length of input tokens should be less than 8192, got 9000", None),
    ("Sum of input tokens and max_tokens (9512) must not be greater than 8192", 512),
    ("token limit exceeded: 9000 > 8192", None),
    ("input_tokens 9000 + max_new_tokens 512 > 8192", 512),
    ("The request's prompt does not fit the context window (limit 8192)", None),
    ("Your prompt has 9000 tokens; the maximum is 8192.", None),
    ("session_len 8192 is smaller than input length 9000: the input is over the limit", None),
    ("Prompt has too many tokens: 9000 (limit 8192)", None),
    ("The request was too long: 9000 tokens. The model supports 8192 tokens.", None),
    ("Input exceeds model context (9000/8192 tokens)", None),
    ("Your messages contain 9000 tokens which is beyond the model's 8192 token window.", None),
    ("Input text is too long, please shorten it to fit within 8192 tokens", None),
    ("The total length of input and output tokens 9512 exceeds 8192", 512),
    ("Request too big: prompt 9000 tokens > n_ctx 8192", None),
    ("KV cache capacity exceeded: prompt requires 9000 tokens, but only 8192 available", None),
    ("Failed to apply chat template: prompt exceeds the model's context window", None),
    ("The number of prompt tokens (9000) plus max_tokens (512) exceeds the model limit (8192)", 512),
    ("Prompt length 9000 should not exceed max_prompt_length 8192", None),
    ("ValueError: Prompt length of 9000 is longer than the maximum model length of 8192", None),
    ("the prompt size (9000) exceeds the maximum input size (8192)", None),
    ("messages exceed the allowed token budget of 8192", None),
    ("You have exceeded the maximum number of input tokens (8192) for this model", None),
    ("Maximum tokens exceeded: the input has 9000 tokens", None),
    ("input_length_exceeded", None),
    ("max_input_tokens_exceeded: prompt has 9000 tokens", None),
    ("prompt_too_long", None),
    ("context_window_exceeded", None),
    ("CONTEXT_LENGTH_EXCEEDED", None),
    ("tokens_limit_exceeded_error input", None),
    ("Requested tokens (9000) exceeds the available context", None),
    ("Model context limit reached", None),
    ("The model's context is full", None),
    ("Sequence too long: 9000 > 8192", None),
    ("This model only supports prompts of up to 8192 tokens; got 9000", None),
    ("length of input exceeds maximum allowed", None),
    ("The conversation history is too long for this model.", None),
    ("Number of tokens (9000) exceeded maximum context length (8192)", None),
    ("Please shorten your prompt: it has 9000 tokens and the model's window is 8192 tokens", None),
    ("Input tokens must not exceed 8192, but got 9000", None),
    ("Prompt must be shorter than 8192 tokens (was 9000)", None),
    ("The prompt plus requested completion does not fit in the context window", 512),
    ("Total tokens 9512 > 8192 (prompt 9000, completion 512)", 512),
    ("Context overflow: estimated 9000 tokens", None),
    ("Cannot process prompt of 9000 tokens: maximum is 8192", None),
    ("inputs tokens + max_new_tokens must be less than or equal to 8192. Given 9000 inputs tokens", 512),
    ("max_new_tokens must be > 0, got -300", None),
    ("Invalid value for max_tokens: -808", None),
    ("max_tokens (-5) must be positive", 256),
    ("Remaining tokens for completion: -12. Reduce prompt.", None),
    ("El prompt es demasiado largo: 9000 tokens > 8192", None),
    ("模型上下文长度超出限制", None),
    ("请求的tokens数量超过模型最大限制", None),
    ("该模型最大上下文为8192", None),
    ("输入内容过长，请缩短后重试", None),
    ("BadRequestError: input_tokens (9000) + max_tokens (512) > max_model_len (8192)", 512),
    ("The input is longer than what the model can process (8192 tokens)", None),
    ("Input validation error: `inputs` must have less than 1024 tokens. Given: 1500", 1024),
]
OTHER: list[tuple[str, int | None]] = [
    ("Invalid value: 'narrator'. Supported values are: 'system', 'assistant', 'user'.", None),
    ("content_filter The response was filtered due to the prompt triggering content management policy.", None),
    ("temperature must be at most 2, got 3", None),
    ("temperature is too high", None),
    ("stop: list too long, at most 4 items", None),
    (
        "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with "
        "length 5 instead.",
        None,
    ),
    (
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array "
        "with length 129 instead.",
        None,
    ),
    (
        "Invalid 'tools[0].function.description': string too long. Expected a string with maximum length"
        " 1024, but got a string with length 1500 instead.",
        None,
    ),
    (
        "string_above_max_length Invalid 'messages[3].tool_calls[0].id': string too long. Expected a "
        "string with maximum length 40, but got a string with length 57 instead.",
        None,
    ),
    (
        "string_above_max_length Invalid 'messages[3].name': string too long. Expected a string with "
        "maximum length 64, but got a string with length 70 instead.",
        None,
    ),
    (
        "Invalid 'input[2].call_id': string too long. Expected a string with maximum length 64, but got "
        "a string with length 70",
        None,
    ),
    (
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string "
        "with length 70 instead.",
        None,
    ),
    (
        "max_tokens is too large: 6000. This model supports at most 4096 completion tokens, whereas you provided 6000.",
        6000,
    ),
    (
        "max_tokens is too large: 6000. This model supports at most 4096 completion tokens, whereas you provided 6000.",
        None,
    ),
    ("Range of max_tokens should be [1, 8192]", 10000),
    ("InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]", 10000),
    ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 10000),
    (
        "max_tokens: 200000 > 8192, which is the maximum allowed number of output tokens for "
        "claude-3-5-sonnet-20240620",
        200000,
    ),
    (
        "The maximum tokens you requested exceeds the model limit of 2048. Try again with a maximum "
        "tokens value that is lower than 2048.",
        4096,
    ),
    (
        "`max_tokens` must be less than or equal to `32768`, the maximum value for `max_tokens` is less "
        "than the `context_window` for this model",
        40000,
    ),
    ("max_tokens must be at least 1, got 0.", 0),
    ("max_tokens must be at least 1, got -5.", -5),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length"
        " is 4096 tokens and your request has 27 input tokens (5000 > 4096 - 27).",
        5000,
    ),
    ("max_new_tokens must be less than 2048, got 4000", 4000),
    ("Input validation error: `max_new_tokens` must be strictly positive", 0),
    ("Your request specified max_tokens 6000, exceeding the limit of 4096 output tokens", 6000),
    (
        "Unable to submit request because it has a maxOutputTokens value of 70000 but the supported "
        "range is from 1 (inclusive) to 65537 (exclusive). Update the value and try again.",
        70000,
    ),
    ("`max_tokens` must be greater than `thinking.budget_tokens`.", 1000),
    ("min_tokens must be less than or equal to max_tokens=16, got 20.", 16),
    (
        "less_than_equal {'type': 'less_than_equal', 'loc': ('body', 'temperature'), 'msg': 'Input "
        "should be less than or equal to 2', 'input': 3.0, 'ctx': {'le': 2.0}}",
        None,
    ),
    ("body temperature Input should be less than or equal to 2", None),
    (
        "[{'type': 'less_than_equal', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be less than "
        "or equal to 8192', 'input': 100000, 'ctx': {'le': 8192}}]",
        100000,
    ),
    (
        "[{'type': 'less_than_equal', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be less than "
        "or equal to 8192', 'input': 100000, 'ctx': {'le': 8192}}]",
        None,
    ),
    (
        "[{'type': 'extra_forbidden', 'loc': ('body', 'num_ctx'), 'msg': 'Extra inputs are not "
        "permitted', 'input': 8192}]",
        None,
    ),
    ("Input should be greater than or equal to 1 body n", None),
    ("top_p must be in (0, 1], got 1.5.", None),
    ("top_k must be -1 (disable), or at least 1, got 0.", None),
    ("Requested sample logprobs of 25, which is greater than max allowed: 20", None),
    ("top_logprobs must be less than or equal to 20", None),
    ("`n` must be at most 128", None),
    (
        "invalid_function_parameters Invalid schema for function 'find': In context=('properties', 'x'),"
        " 'foo' is not valid under any of the given schemas.",
        None,
    ),
    ("Invalid schema for function 'f': schema nesting too deep, maximum depth is 5", None),
    ("tools.0.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12", None),
    ("tools.0.custom.name: String should have at most 128 characters", None),
    ("Invalid input: function name length must be at most 64", None),
    ("model_not_found The model `gpt-9` does not exist or you do not have access to it.", None),
    ("Invalid model id: input does not match the maximum of known ids", None),
    (
        "Rate limit reached for model `x` on tokens per minute (TPM): Limit 15000, Used 11972, Requested"
        " 4351. Please try again in 5.289s.",
        None,
    ),
    ("This request would exceed your organization's rate limit of 40,000 input tokens per minute.", None),
    ("Too many tokens, please wait before trying again.", None),
    ("Too many tokens per day, please wait before trying again.", None),
    ("Tokens per minute limit exceeded - too many tokens processed.", None),
    ("insufficient_quota You exceeded your current quota, please check your plan and billing details.", None),
    (
        "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but "
        "can only afford 1234.",
        65536,
    ),
    ("Your credit balance is too low to access the Anthropic API.", None),
    ("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes", None),
    (
        "messages.0.content.1.image.source.base64.data: At least one of the image dimensions exceed max "
        "allowed size: 8000 pixels",
        None,
    ),
    ("The image is too large: image size exceeds 20 MB limit", None),
    ("Invalid image in messages: input image too large, maximum size 4096x4096 pixels", None),
    ("Exceeded limit on max bytes per data-uri item: 10485760", None),
    ("A maximum of 100 PDF pages may be provided.", None),
    ("Too many images in request: the maximum is 10 images per prompt", None),
    ("At most 1 image(s) may be provided in one request/prompt.", None),
    ("Conversation roles must alternate user/assistant/user/assistant/...", None),
    (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        None,
    ),
    ("The model does not support more than one system message", None),
    ("messages: at least one message is required", None),
    ("messages: text content blocks must be non-empty", None),
    (
        'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
        None,
    ),
    ("The decoder prompt cannot be empty", None),
    ("Input length must be greater than 0", None),
    ("prompt must contain at least 1 token", None),
    ("Token id 200000 is out of vocabulary", None),
    ("token_id(s) [200000] in logit_bias contain out-of-vocab token ids. Vocabulary size: 32000", None),
    (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        512,
    ),
    (
        "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) "
        "value is supported.",
        None,
    ),
    ("Unrecognized request argument supplied: context_length", None),
    ("Request timed out: the request took too long to process", None),
    ("upstream connect error or disconnect/reset before headers. reset reason: overflow", None),
    ("The server is overloaded or not ready yet.", None),
    ("Requests exceed the concurrency limit", None),
    ("seed: Input should be less than or equal to 9223372036854775807", None),
    (
        "Invalid value for 'seed': integer above maximum value. Expected a value <= 9223372036854775807,"
        " but got 9223372036854775808 instead.",
        None,
    ),
    ("tool_choice is set to required but tools is not provided", None),
    (
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        None,
    ),
    ("We could not parse the JSON body of your request.", None),
    ("System role is not supported by this model's chat template", None),
    ("Invalid grammar specification: regex too long, maximum 1000 states", None),
    ("response_format json_schema is too large: maximum 100 properties", None),
    ("temperature + input: invalid combination", None),
    ("n_predict must be less than 4096", None),
    ("Parameter error: the seed length exceeds the limit", None),
    ("presence_penalty must be in [-2, 2], got -3", 512),
    ("max_tokens must be an integer between 1 and 8192", 20000),
    ("temperature must be less than or equal to 2 for input", None),
    ("frequency_penalty must be between -2 and 2, got -3", None),
    ("max_tokens must be at most 4096", 8000),
    ("max_completion_tokens exceeds the maximum allowed for this model (16384)", 20000),
    ("The value of max_tokens is beyond the limit 4096", 8000),
    ("`top_k` must be less than 100", None),
    ("The tool call arguments exceed the maximum length of 1000 characters", None),
    ("Function description too long: maximum 1024 characters", None),
    ("too many functions: limit 64", None),
    ("Number of stop sequences exceeds the maximum of 4", None),
    ("stop sequences too long: maximum length 16 characters", None),
    ("Too many stop sequences (5), maximum is 4", None),
    ("response_format schema exceeds the maximum nesting depth of 5", None),
    ("The JSON schema has too many properties", None),
    ("User id too long: limit is 64", None),
    ("metadata value exceeds maximum length of 512 characters", None),
    ("The image exceeds the maximum number of pixels", None),
    ("file too large: 30 MB, maximum is 20 MB", None),
    ("audio input too long: maximum 30 seconds", None),
    ("Invalid API key: length must be 32", None),
    ("You have exceeded your monthly usage limit. Upgrade your plan.", None),
    ("Your account has reached its spending limit of $10", None),
    ("Usage limit exceeded, resets at 5pm", None),
    (
        "You have reached your specified API usage limits. You will regain access on 2026-01-01 at 00:00 UTC.",
        None,
    ),
    ("Free tier limit reached: 50 messages a day", None),
    ("Daily token limit reached (1000000 tokens)", None),
    ("Monthly token quota exceeded", None),
    ("TPM limit exceeded: 100000 tokens", None),
    ("Too many requests in flight; maximum 10", None),
    ("Maximum number of parallel requests exceeded", None),
    ("The model is overloaded: request queue is full", None),
    ("Unsupported content type: input must be application/json", None),
    ("invalid JSON: Unterminated string at line 1 column 9000", None),
    ("model input not supported: modalities must be text", None),
    ("reasoning_effort must be one of low, medium, high", None),
    ("thinking.budget_tokens must be less than max_tokens", 1000),
    ("n must be less than or equal to 8, got 16", None),
    ("best_of must be greater than or equal to n", None),
    ("logit_bias: too many entries, maximum 300", None),
    ("seed must be less than 2^63", None),
    ("messages[0].role: value is not one of the allowed", None),
    ("messages must alternate; more than two user messages in a row", None),
    ("Invalid message: content must not be empty", None),
    ("Expected last role User or Tool for serving but got assistant", None),
    ("prompt_cache_key too long: maximum length 64", None),
    ("safety_identifier exceeds the maximum length of 64 characters", None),
    ("Your input was flagged as exceeding our safety limits", None),
    ("chat_template_kwargs has more than 10 keys", None),
    ("guided_regex is too long: limit 5000", None),
    ("The server had an error while processing your request. Sorry about that!", None),
    ("CUDA out of memory. Tried to allocate 2.00 GiB", None),
    ("LoRA rank 64 is greater than max_lora_rank 16", None),
]
