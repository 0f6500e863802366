"""Families that write JSON, or lists of Python calls, between marks of their own."""

from rollenv.core.tools.call_readers import CallFamily

FAMILIES = (
    CallFamily("Nemotron", elements={"<TOOLCALL>": "</TOOLCALL>"}),
    CallFamily("LongCat", elements={"<longcat_tool_call>": "</longcat_tool_call>"}),
    CallFamily("Granite 20B", elements={"<function_call>": "</function_call>"}),
    CallFamily("Glaive", elements={"<functioncall>": "</functioncall>"}),
    CallFamily("Granite 3", opening=("<|tool_call|>",)),
    CallFamily("Phi", opening=("<|tool_call|>", "<|tool_calls|>"), closing=("<|/tool_call|>", "<|/tool_calls|>")),
    CallFamily("Llama 3", opening=("<|python_tag|>",), ends=("<|eot_id|>", "<|eom_id|>")),
    CallFamily("LFM2", opening=("<|tool_call_start|>",), closing=("<|tool_call_end|>",)),  # a list of Python calls
    CallFamily("Command", opening=("<|START_ACTION|>",), closing=("<|END_ACTION|>",)),
    CallFamily("InternLM", opening=("<|action_start|>", "<|plugin|>"), closing=("<|action_end|>",)),
    CallFamily("GigaChat", opening=("<|function_call|>", "function call<|role_sep|>"), inner=("<|role_sep|>",)),
    CallFamily("Phi-4-mini", pattern=r"functools(?=\[\s*\{)"),
    CallFamily(
        "Inkling",
        opening=("<|content_invoke_tool_json|>", "<|message_model|><|content_invoke_tool_json|>"),
        ends=("<|end_message|>",),
    ),
)
