"""Small chat templates that render tools as those of several families of models do."""

from __future__ import annotations

HERMES = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "<tools>{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}{{ '\n' }}</tools><|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% elif m.role != 'system' or not tools %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ '' if loop.first else '\n' }}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endif %}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
"""Definitions in the system message; arguments are objects."""

LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('only one call at once') }}{% endif %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|eot_id|>{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if loop.first and tools %}{% for t in tools %}{{ t | tojson }}\n\n{% endfor %}{% endif %}"
    "{{ m.content }}<|eot_id|>{% endif %}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
"""Definitions in the first message; one call at a time."""

MISTRAL = (
    "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% elif m.tool_calls %}"
    "[TOOL_CALLS] [{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "{{ (c.function | tojson)[:-1] }}, \"id\": \"{{ c.id }}\"}{{ '' if loop.last else ', ' }}{% endfor %}]</s>"
    '{% elif m.role == \'tool\' %}[TOOL_RESULTS] {"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}'
    "[/TOOL_RESULTS]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
"""Ids of nine characters."""

DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.tool_calls %}"
    "<｜Assistant｜>{{ m.content or '' }}<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>"
    "{{ c.function.name + '<｜tool▁sep｜>' + c.function.arguments }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>"
    "{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}<｜Assistant｜>"
)
"""Arguments are text, and definitions belong into the system message."""

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
"""Calls and definitions are dropped."""

TEMPLATES = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL, "deepseek-v3.1": DEEPSEEK}
"""Templates by the name of their call format."""
