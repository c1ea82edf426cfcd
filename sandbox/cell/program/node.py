"""Programs in JavaScript: this process becomes node, which reports as `main` does.

The memory limit is enforced from outside, by a cgroup or the supervisor's watch: V8
reserves more address space than it uses, so RLIMIT_AS would kill it at its start.
Its own heap limit makes it collect garbage before the other one is reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from ..kernel import signals
from ..wire.contract import FILE_NAME, NODE_NAME, REQUEST_FD, RESULT_FD
from . import source
from .node_tools import RUNNER_PART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# The source is parsed as a script, whose last value is known; else as a module; else
# as TypeScript, without its types. `node -e` gives it `require` and the current folder.
_RUNNER = (
    r"""(() => {
'use strict';
const fs = require('node:fs'), path = require('node:path'), vm = require('node:vm');
const {inspect, promisify} = require('node:util');
const {pathToFileURL} = require('node:url');
const {stripTypeScriptTypes} = require('node:module');
const text = fs.readFileSync(SCRIPT_FD, 'utf8');
fs.closeSync(SCRIPT_FD);
const {code, file, inputs, args, lives, secrets, tools, callsAtOnce} =
  JSON.parse(text);
const NAME = path.basename(file), MAX = 524288, MAX_VALUES = 100000, LOOSE =
  /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
let room = MAX_VALUES, value, failure, finished = false, drained = false;

const isText = (each) => typeof each === 'string' && !LOOSE.test(each);
function isJSON(each, depth) {
  if (each === null || typeof each === 'boolean' || isText(each)) return true;
  if (typeof each === 'number') return Number.isFinite(each);
  if (typeof each !== 'object' || depth > 100) return false;
  // As the host counts: an empty one is two values.
  room -= (Array.isArray(each) ? each : Reflect.ownKeys(each)).length || 1;
  if (room < 0) return false;
  if (Array.isArray(each)) return [...each].every((item) => isJSON(item, depth + 1));
  const kind = Object.getPrototypeOf(each);
  if ((kind !== null && kind !== Object.prototype) || 'toJSON' in each) return false;
  return Reflect.ownKeys(each).every(
    (key) => isText(key) && isJSON(each[key], depth + 1));
}
function nameOf(each) {
  const name = each === null ? 'null' : each?.constructor?.name;
  return typeof name === 'string' && name ? name : typeof each;
}
function described() {
  try {
    if (value === undefined) return {json: null};
    const text = isJSON(value, 0) ? JSON.stringify(value) : '';
    if (text && Buffer.byteLength(text) <= MAX) return {json: value};
  } catch {}
  try {
    return {type: nameOf(value), repr: inspect(value).slice(0, 1024)};
  } catch {
    return {type: 'unknown'};
  }
}
function exceptionOf(error) {
  const isError = error instanceof Error;
  const message = isError ? error.message : inspect(error);
  const number = isError && Number.isInteger(error.errno) ? -error.errno : null;
  const stack = isError ? String(error.stack) : '';
  return {type: nameOf(error), message: String(message).slice(0, 65536),
          traceback: stack.slice(-65536), errno: number};
}
function report(outcome) {
  const data = Buffer.from(JSON.stringify(outcome).replace(LOOSE, '\ufffd') + '\n');
  for (let at = 0; at < data.length;) at += fs.writeSync(RESULT_FD, data, at);
}
process.on('uncaughtExceptionMonitor', (error) => {
  failure = {error};
  trim(error);
});
function trim(error) {
  try {
    // Not the lines that are ours.
    const stack = error.stack.replace(/^\[eval\]:\d+\n.*\n.*\n\n/, '');
    let lines = stack.split('\n');
    const end = lines.findIndex((line) => /node:vm|\[eval\]|Session\.post/.test(line));
    if (end > 0) lines = lines.slice(0, end);
    if (!lines.some((line) => line.startsWith('    at '))) lines.push('    at ' + NAME);
    error.stack = lines.join('\n');
  } catch {}
}
process.on('beforeExit', () => { drained = true; });
process.on('exit', (status) => {
  if (status === 1 && failure && !lives) {
    report({outcome: 'error', exception: exceptionOf(failure.error)});
  } else if (status === 0 && finished && drained) {
    report({outcome: 'ok', value: described()});
  } else if (status === 0 && drained) {
    process.stderr.write(NAME + ': a top-level await never settled\n');
    process.exitCode = 13;
  }
});

function quietly(action) {
  const warn = process.emitWarning;
  process.emitWarning = () => {};
  try { return action(); } finally { process.emitWarning = warn; }
}
function load(name) {
  const isPath = /^\.{0,2}\//.test(name);
  return import(isPath ? pathToFileURL(path.resolve(name)).href : name);
}
async function link(name) {
  const found = await load(name), names = Object.keys(found);
  return new vm.SyntheticModule(names, function () {
    for (const each of names) this.setExport(each, found[each]);
  });
}
function awaits(source) {
  try {
    return Boolean(new vm.Script(`async () => {${withoutShebang(source)}\n}`));
  } catch {
    return false;
  }
}
function withoutShebang(source) {
  return source.replace(/^#!.*/, '');
}
function returns(source) {
  const head = '(() => {';
  try {
    return new vm.Script(`${head}${withoutShebang(source)}\n})()`, {
      filename: file, columnOffset: -head.length, importModuleDynamically: load});
  } catch {
    return null;
  }
}
function parsed(source) {
  try {
    return new vm.Script(source, {filename: file, importModuleDynamically: load});
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    const whole = /Illegal return/.test(error.message) && returns(source);
    if (whole) return whole;
    // Where nothing is imported, V8's own prompt knows the value of what awaits.
    if (!/\b(import|export)\b/.test(source) && awaits(source)) return {source};
    try {
      return quietly(() => new vm.SourceTextModule(source, {
        identifier: file, importModuleDynamically: load,
        initializeImportMeta(meta) {
          meta.filename = file;
          meta.dirname = path.dirname(file);
          meta.url = pathToFileURL(meta.filename).href;
        }}));
    } catch (other) {
      throw /import|export|await/.test(error.message) ? other : error;
    }
  }
}
function understood() {
  try {
    return parsed(code);
  } catch (error) {
    if (!stripTypeScriptTypes) {
      error.message += ' (TypeScript needs node 22.13 or newer; this is ' +
        process.version + ')';
      throw error;
    }
    let plain;
    try {
      plain = quietly(() => stripTypeScriptTypes(code));
    } catch (other) {
      throw other.code === 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX' ? other : error;
    }
    return parsed(plain);
  }
}
async function evaluated(expression) {
  const {Session} = require('node:inspector'), session = new Session();
  session.connect();
  const post = promisify(session.post.bind(session));
  const asked = {expression, replMode: true, awaitPromise: true};
  const {result, exceptionDetails} = await post('Runtime.evaluate', asked);
  // The object itself, which a message only describes.
  const held = Symbol.for('toolcell.held');
  globalThis[held] = {};
  const {objectId, value: plain, unserializableValue} = result;
  await post('Runtime.callFunctionOn', {
    functionDeclaration: "function (it) { this[Symbol.for('toolcell.held')] = {it} }",
    objectId: (await post('Runtime.evaluate', {expression: 'globalThis'}))
      .result.objectId,
    arguments: [{objectId, value: plain, unserializableValue}]});
  const {it} = globalThis[held];
  delete globalThis[held];
  session.disconnect();
  if (exceptionDetails) throw it;
  return it;
}
// Of a session that keeps its variables: one request after the other.
const last = {_: undefined, _error: undefined};
function offerLast() {
  for (const name of Object.keys(last)) {
    // As at node's prompt, until a program assigns them.
    Object.defineProperty(globalThis, name, {
      configurable: true,
      get: () => last[name],
      set(own) {
        const more = {configurable: true, enumerable: true, writable: true};
        Object.defineProperty(this, name, {value: own, ...more});
      }});
  }
}
// As at node's prompt: what may be an object or a block is an object.
function asObject(source) {
  if (!/^\s*\{/.test(source) || /;\s*$/.test(source)) return source;
  // `{ if (done) { end(); } }` would be an object with a method of that name.
  if (/^\s*\{\s*(if|while|with|switch|for)\s*\(/.test(source)) return source;
  const object = `(${source}\n)`;
  return awaits(object) ? object : source;
}
const LOAD = "globalThis[Symbol.for('toolcell.load')]";
const NAMES = String.raw`([\w$]+\s*,?\s*)?(\*\s*as\s+[\w$]+|\{[^}]*\})?\s*from\s*`;
const STATIC = new RegExp(
  String.raw`(^|[;\n])(\s*)import\s+(?:${NAMES})?(['"])([^'"\n]+)\5`, 'g');
function withImports(source) {
  if (!/\bimport\b/.test(source)) return source;
  const found = source.replace(STATIC, (_, start, space, own, named, mark, from) => {
    const loaded = `await ${LOAD}(${mark}${from}${mark})`;
    const name = own?.replace(/[\s,]/g, '');
    if (named?.startsWith('*')) {
      const all = named.replace(/^\*\s*as\s+/, '');
      return `${start}${space}const ${all} = ${loaded}` +
        (name ? `, {default: ${name}} = ${all};` : ';');
    }
    const names = named ? named.slice(1, -1).replace(/\s+as\s+/g, ': ') : '';
    const all = [name && `default: ${name}`, names].filter(Boolean).join(', ');
    return start + space + (all ? `const {${all}} = ${loaded};` : `${loaded};`);
  });
  return found.replace(/(?<![\w$.'"`])import\s*\(/g, LOAD + '(');
}
function withoutExport(error, source) {
  const exports = "Unexpected token 'export'";
  if (!(error instanceof SyntaxError) || error.message !== exports) return error;
  // A file that it loaded may have the word.
  if (awaits(withImports(withoutTypes(source)))) return error;
  return new SyntaxError('Cannot use export in a session, which keeps all variables:' +
    ' leave the word out');
}
function withoutTypes(source) {
  try {
    return stripTypeScriptTypes ? quietly(() => stripTypeScriptTypes(source)) : source;
  } catch {
    return source;
  }
}
"""
    + RUNNER_PART
    + r"""async function nextRequest() {
  const body = await supervisor.request();
  const first = body.indexOf(10), second = body.indexOf(10, first + 1);
  const header = JSON.parse(body.subarray(0, first));
  const named = JSON.parse(body.subarray(first + 1, second).toString() || '{}');
  if (header.inputs_file) {
    Object.assign(named, JSON.parse(fs.readFileSync(header.inputs_file)));
    fs.unlinkSync(header.inputs_file);
  }
  const {$secrets = {}, ...others} = named;
  return {code: body.subarray(second + 1).toString(), inputs: others,
          secrets: {...header.variables, ...$secrets}, tools: header.tools ?? [],
          callsAtOnce: header.calls_at_once ?? CALLS_AT_ONCE};
}
async function serve(request) {
  let fail;
  Object.defineProperty(globalThis, Symbol.for('toolcell.load'), {value: load});
  offerLast();
  process.on('uncaughtException', (error) => fail(error));
  // What is at work, and does not wait, cannot notice it.
  process.on('SIGINT', () => fail(new Error('the run was interrupted')));
  for (;;) {
    const before = {...process.env};
    Object.assign(globalThis, request.inputs);
    Object.assign(process.env, request.secrets);
    const endTools = offerTools(request.tools, request.callsAtOnce);
    room = MAX_VALUES;
    finished = false;
    const failed = new Promise((_, no) => { fail = no; });
    let outcome;
    try {
      const source = withImports(withoutTypes(asObject(request.code)));
      value = await Promise.race([evaluated(source), failed]);
      last._ = value;
      outcome = {outcome: 'ok', value: described(), exit_code: 0};
    } catch (thrown) {
      const error = last._error = withoutExport(thrown, request.code);
      trim(error);
      process.stderr.write(`Uncaught ${error?.stack ?? inspect(error)}\n`);
      outcome = {outcome: 'error', exception: exceptionOf(error), exit_code: 1};
    }
    await endTools();
    report(outcome);
    for (const name of Object.keys(request.secrets)) {
      delete process.env[name];
      if (name in before) process.env[name] = before[name];
    }
    request = await nextRequest();
  }
}
process.argv = [process.argv[0], file, ...args];
// Those of this process, which its children would get.
process.execArgv = [];
const main = Object.assign(module, {id: '.', filename: file});
process.mainModule = require.main = main;
// `node -e` puts `require('module')` there once the script has run.
queueMicrotask(() => { globalThis.module = main; });
Object.assign(globalThis, {__filename: file, __dirname: path.dirname(file)});
if (lives || tools.length) supervisor.open();
if (lives) {
  serve({code, inputs, secrets, tools, callsAtOnce});
  return;
}
Object.assign(globalThis, inputs);
offerTools(tools, callsAtOnce);
const program = understood();
if (program instanceof vm.Script) {
  finished = true;
  value = program.runInThisContext();
  if (value instanceof Promise) value.then((each) => { value = each; });
} else if (program.source !== undefined) {
  (async () => {
    value = await evaluated(program.source);
    finished = true;
  })();
} else {
  (async () => {
    await program.link(link);
    await program.evaluate();
    value = program.namespace.default;
    finished = true;
    if (value instanceof Promise) value = await value;
  })();
}
})();
"""
)


def run(node: str, request: dict[str, Any], folder: str, *, lives: bool) -> int:
    """Replace this process by node; inputs become global variables.

    Args:
        node: The program.
        request: What to run.
        folder: The work dir. A program that is alone in its cell becomes a file of it.
        lives: True if it serves one request after the other and keeps its variables.
    """
    name = sys.argv[0] if sys.argv[0] not in ("", FILE_NAME) else NODE_NAME
    file = os.path.join(folder, os.path.basename(name))
    if request["final"] and not lives:
        with contextlib.suppress(OSError):
            file = source.place(request["code"], folder, name)
    script = os.memfd_create("script", 0)
    asked = {
        "code": request["code"].decode("utf-8"),
        "file": file,
        "inputs": request["inputs"],
        "args": sys.argv[1:],
        "secrets": request.get("secrets", {}),
        "lives": lives,
        "tools": request["tools"],
        "callsAtOnce": request["calls_at_once"],
    }
    data = json.dumps(asked).encode()
    view = memoryview(data)
    while view:
        view = view[os.write(script, view) :]
    os.lseek(script, 0, os.SEEK_SET)
    signals.as_new()
    speaks = lives or request["tools"]
    for fd in (RESULT_FD, script, *((REQUEST_FD,) if speaks else ())):
        os.set_inheritable(fd, True)
    heap = "--max-old-space-size=%d" % request["memory_mib"]
    numbers = (RESULT_FD, script, REQUEST_FD)
    head = "const RESULT_FD = %d, SCRIPT_FD = %d, REQUEST_FD = %d;" % numbers
    arguments = ["node", heap, "--experimental-vm-modules", "-e", head + _RUNNER]
    try:
        os.execvp(node, arguments)
    except OSError as error:
        why = "toolcell: cannot start node: %s; set `node`, or use an image that has it"
        os.write(2, (why % error.strerror).encode() + b"\n")
        return 127
