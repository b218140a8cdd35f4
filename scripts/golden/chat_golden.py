#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer/chat.json: conversations as transformers' apply_chat_template writes them.

The templates are of this project's own writing; between them they use what the templates of public models use. "chatml",
"llama3" and "mistral" say what the built-in forms of the same names must write.
"""

import json
import pathlib

from transformers import PreTrainedTokenizerFast

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tokenizer"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

CONVERSATIONS = [
    [("user", "Hi")],
    [("system", "Be brief."), ("user", "Hi there"), ("assistant", "Hello!"), ("user", "Bye 12")],
    [("user", "  padded \n"), ("assistant", "\n\tlike this \u3000"), ("user", "ok")],
    [("system", ""), ("user", "")],
    [("user", "naïve 日本語 👍🏽 \"quoted\" \\ {{ not.a.tag }} {% if %}\n")],
    [("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nb"), ("user", "c"), ("assistant", "d</think>e")],
    [("assistant", "I begin"), ("user", "so?")],
    [("user", "one"), ("user", "two")],
    [("tool", "result"), ("user", "x")],
    [("system", "You are\r\na 'helper'."), ("user", "A-B_C 1.5"), ("assistant", "done"), ("user", "[INST] x [/INST]")],
]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{%- set turns = messages -%}
{%- for turn in turns -%}
    {%- set text = '<|start_header_id|>' + turn['role'] + '<|end_header_id|>\n\n' + turn['content'] | trim + '<|eot_id|>' -%}
    {%- if loop.index0 == 0 -%}{%- set text = bos_token + text -%}{%- endif -%}
    {{- text -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
"""
MISTRAL = """{{- bos_token }}
{%- set state = namespace(held='') %}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('unknown role') }}
    {%- elif message['role'] == 'system' %}
        {%- set state.held = message['content'] + '\n\n' %}
    {%- elif message['role'] == 'user' %}
        {{- '[INST] ' + state.held + message['content'] + ' [/INST]' }}
        {%- set state.held = '' %}
    {%- else %}
        {{- message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""
ALTERNATING = """{% if messages[0]['role'] == 'system' %}
    {% set system_message = messages[0]['content'] | trim + '\n\n' %}
    {% set messages = messages[1:] %}
{% else %}
    {% set system_message = '' %}
{% endif %}
{{ bos_token }}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate') }}
    {% endif %}
    {% if loop.index0 == 0 %}{% set content = system_message + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}
    {% if message['role'] == 'user' %}
        {{- '<user>' + content.strip() + '</user>' }}
    {% elif message['role'] == 'assistant' %}
        {{ ' ' + content | trim + ' ' + eos_token }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}<model>{% endif %}

"""
REASONING = """{%- if tools %}
    {{- '<|im_start|>system\n' }}{{- tools | tojson }}
{%- else %}
    {%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or (not loop.last and thoughts)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}{%- for call in message.tool_calls %}{{- call.name }}{%- endfor %}{%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
"""
MACROS = """{#- a comment -#}
{%- macro turn(role, content, end='</s>', mark=none) -%}
    [{{ role | upper }}{{ mark if mark is not none }}]{{ content }}{{ end }}
{%- endmacro -%}
{%- macro outer(m) %}{{ turn(m.role, m.content | replace('a', 'A')) }}|{{ bos_token }}{% endmacro -%}
{% for m in messages if m.role != 'tool' %}
{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ loop.revindex }} {{ loop.previtem.role | default('none') if loop.previtem is defined else '-' }}
  {% if m.content == '' %}{% continue %}{% endif %}
  {{ outer(m) }}
{{ turn(content=m.content|trim, role=m['role'], mark='!') -}}
{% else %}
no messages
{% endfor %}
{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}<{{ m.role }}>{% endfor %}

"""
EXPRESSIONS = """{%- set x = {'a': 1, "b": [1, 2.5, none, true, 'é"\\n'], 'c': {'d': ''}} -%}
{{ x | tojson }}
{{ x | tojson(indent=2) }}
{{ messages | tojson }}
{{ x.b[1] }} {{ x['b'][-1] }} {{ x.get('z', 'dflt') }} {{ x.items() | list | length }} {{ x.keys() | join(',') }}
{% for k, v in x.items() %}{{ k }}={{ v | tojson }};{% endfor %}
{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 + 4 }} {{ 1.0 }} {{ 1 ~ 'a' ~ none ~ true }} {{ 'ab' * 2 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' in 'cat' }} {{ 'z' not in ['z'] }} {{ 'b' in x }} {{ not 1 == 2 }} {{ 1 == true }} {{ 'x' == none }}
{{ nothing }}|{{ nothing is defined }}|{{ nothing | default('d') }}|{{ '' | default('e', true) }}|{{ nothing is none }}|{{ none is none }}
{{ 'a' if false }}|{{ 'a' if 1 else 'b' }}|{{ nothing or 'or' }}|{{ 'x' and '' }}|{{ (1, 2) | length }}
{{ [3, 1] + [2] }}{# lists have no text here #}
"""
EXPRESSIONS = EXPRESSIONS.replace("{{ [3, 1] + [2] }}{# lists have no text here #}", "{{ ([3, 1] + [2]) | tojson }}{# list #}")
TEXTS = """{% set s = messages[0].content %}
{{ s[:2] }}|{{ s[-3:] }}|{{ s[::-1] }}|{{ s | length }}|{{ s[1] }}|{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip('\n') }}|{{ s | trim }}
{{ 'A b-C' | lower }}|{{ 'A b-C'.upper() }}|{{ 'hello big' | capitalize }}|{{ 'hello big' | title }}|{{ 'a,b,,c'.split(',') | tojson }}|{{ 'a,b,c'.split(',', 1) | tojson }}
{{ 'xyx'.replace('x', 'zz') }}|{{ 'xyx'.find('y') }}|{{ 'aXbX'.count('X') }}|{{ 'a\nb\n'.splitlines() | tojson }}|{{ 'x\ny' | indent(2) }}|{{ 'x\n\ny' | indent(3, true) }}
{{ messages | map(attribute='role') | join(', ') }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|{{ (messages | rejectattr('role', '==', 'user') | list)[0].role }}
{{ messages | map(attribute='content') | map('trim') | join('/') }}|{{ (messages | first).role }}|{{ (messages | last).role }}|{{ messages | reverse | map(attribute='role') | join }}
{{ range(3) | list | tojson }}|{{ range(5, 0, -2) | list | tojson }}|{{ '5' ~ 5 | string }}|{{ 4 is divisibleby(2) }}|{{ 3 is odd }}|{{ 'a' is string }}|{{ x is mapping }}|{{ messages is iterable }}|{{ [1] is sequence }}
{% set block %}  kept
 {{ s }}{% endset %}[{{ block }}]
{%- set ns = namespace(n=0, found=false) -%}
{%- for m in messages -%}{%- set ns.n = ns.n + 1 -%}{%- if m.role is in ['system'] -%}{%- set ns.found = true -%}{%- endif -%}{%- endfor -%}
{{ ns.n }} {{ ns.found }} {{ "tab\there" }} {{ 'single\\'s' }} {{ "a" "b" }}
   {% if true %}   indented
   {%+ if true %}plus{% endif +%}
   tail{% endif %}

    {{- ' end ' -}}

   """
SPACES = "a\n  {% if true %}\n b\n  {% endif %}\nc {% if true %} d {%- endif %}  \n e\n\t{# gone #}\nf {#- x -#} g\n{{ 'h' }}\n{{ 'i' -}}\n\n  j\r\nk\n\n"

TEMPLATES = {
    "chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "alternating": ALTERNATING, "reasoning": REASONING, "macros": MACROS,
    "expressions": EXPRESSIONS, "texts": TEXTS, "spaces": SPACES,
}  # fmt: skip


def rendered(tokenizer, template, messages, prompt):
    """The text, or None where the template refuses or fails."""
    try:
        return tokenizer.apply_chat_template(messages, chat_template=template, add_generation_prompt=prompt, tokenize=False)
    except Exception as error:  # jinja2's own types, and what Python raises inside of a template
        if type(error).__name__ not in ("TemplateError", "UndefinedError"):
            raise
        return None


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(OUT / "gpt2.json"), **TOKENS)
    conversations = [[{"role": role, "content": content} for role, content in talk] for talk in CONVERSATIONS]
    templates = [
        {"name": name, "source": source, "texts": [[rendered(tokenizer, source, talk, prompt) for prompt in (False, True)] for talk in conversations]}
        for name, source in TEMPLATES.items()
    ]
    ids = [tokenizer.apply_chat_template(talk, chat_template=CHATML, add_generation_prompt=True) for talk in conversations]
    golden = {"special_tokens": TOKENS, "conversations": CONVERSATIONS, "templates": templates, "chatml_ids_gpt2": ids}
    path = OUT / "chat.json"
    path.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n", encoding="ascii")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
