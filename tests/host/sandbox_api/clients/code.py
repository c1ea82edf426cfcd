"""The SDK `e2b-code-interpreter`, unmodified, oldest and newest."""

from e2b_code_interpreter import Sandbox

sandbox = Sandbox.create(timeout=120)
assert sandbox.run_code("x = 41; print('hi')").logs.stdout == ["hi\n"]
assert sandbox.run_code("x + 1").text == "42"
assert sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"
context = sandbox.create_code_context(cwd="/tmp")
assert sandbox.run_code("import os; os.getcwd()", context=context).text == "'/tmp'"
assert sandbox.run_code("x", context=context).error.name == "NameError"
assert sandbox.run_code("echo $A", language="bash", envs={"A": "1"}).logs.stdout
sandbox.kill()
print("done")
