"""Chat templates written for the tests in the ways that models' own templates are."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

BOS_FIRST = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

WITHOUT_BOS = BOS_FIRST.removeprefix("{{ bos_token }}")

TRIMS = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

# Everything that BB-15 names, in one template.
EVERYTHING = """{{- bos_token }}
{%- set ns = namespace(count=0, system=none) %}
{%- macro shout(text) %}{{ text | upper }}!{% endmacro %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- if strftime_now is defined %}
{{ strftime_now('%') ~ '\\n' }}
{%- endif %}
{%- if ns.system %}System: {{ shout(ns.system) }}{% endif %}
{%- if tools %}
Tools: {{ tools | tojson(indent=2) }} {{ tools[0] | tojson }}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant, not ' + message['role']) }}
    {%- endif %}
    {%- if message['content'] == 'skip' %}{% continue %}{% endif %}
    {%- if ns.count == 3 %}{% break %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- if message['role'] == 'assistant' %}
{% generation %}
{{ message['content'] }}{{ eos_token }}
{% endgeneration %}
    {%- else %}
{{ '\\n' }}U{{ loop.index }}: {{ message['content'] }}
    {%- endif %}
{%- endfor %}
{%- for i in range(2) %}.{% endfor %}
{%- if add_generation_prompt %}
A:
{%- endif %}"""

REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)

LOOPS_OR_TEXT = (
    "{% for message in messages %}{{ '<' + message.role + '>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'text' %}{{ item['text'] }}"
    "{% endif %}{% endfor %}{% endif %}{{ '</end>' }}{% endfor %}"
)

LOOPS_ONLY = (
    "{% for message in messages %}{{ '<' + message.role + '>' }}{% set content = message.content %}"
    "{% for part in content | selectattr('type', 'equalto', 'text') %}({{ part.text }}){% endfor %}"
    "{% endfor %}"
)
