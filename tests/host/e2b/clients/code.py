"""The SDK `e2b-code-interpreter`, unmodified, oldest and newest."""

from e2b_code_interpreter import Sandbox

sandbox = Sandbox.create(timeout=120)
assert sandbox.run_code("x = 41; print('hi')").logs.stdout == ["hi\n"]
assert sandbox.run_code("x + 1").text == "42"
assert sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"
context = sandbox.create_code_context(cwd="/tmp")
assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
assert sandbox.run_code("x", context=context).error.name == "NameError"
assert sandbox.run_code("echo $A", language="bash", envs={"A": "1"}).logs.stdout
shown = """
display({"text/plain": "p", "text/html": "<p>", "image/png": "iVBORw0KGgo="}, raw=True)
display({"text/plain": "v", "application/vnd.x+json": {"a": 1}}, raw=True)
class Value:
    def _repr_markdown_(self): return "# v"
    def _repr_latex_(self): return "$v$"
Value()
"""
first, second, value = sandbox.run_code(shown).results
assert (first.text, first.html, first.png) == ("p", "<p>", "iVBORw0KGgo=")
assert second.text == "v"
assert not first.is_main_result
assert value.is_main_result
assert (value.markdown, value.latex) == ("# v", "$v$")
sandbox.kill()
print("done")
