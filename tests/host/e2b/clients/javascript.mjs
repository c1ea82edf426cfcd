// The SDKs `e2b` and `@e2b/code-interpreter` of npm, unmodified.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

const require = createRequire(`${process.argv[2]}/`)
const { Sandbox } = require('e2b')
const { Sandbox: CodeSandbox } = require('@e2b/code-interpreter')

const sandbox = await Sandbox.create({ timeoutMs: 600_000, envs: { FOO: 'bar' } })
assert.equal((await sandbox.commands.run('echo $FOO; pwd')).stdout, 'bar\n/home/user\n')
await assert.rejects(sandbox.commands.run('exit 4'), (error) => error.exitCode === 4)
await sandbox.files.write('a/b.txt', 'hi')
assert.equal(await sandbox.files.read('a/b.txt'), 'hi')
assert.deepEqual((await sandbox.files.list('a')).map((each) => each.name), ['b.txt'])
assert.equal(await sandbox.files.exists('nope'), false)
let see
const seen = new Promise((resolve) => { see = resolve })
const watch = await sandbox.files.watchDir('a', (event) => see(event.name))
await sandbox.files.write('a/c.txt', 'hi')
assert.equal(await seen, 'c.txt')
await watch.stop()
let output = ''
const terminal = await sandbox.pty.create({
  cols: 80, rows: 24, onData: (data) => { output += new TextDecoder().decode(data) },
})
await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('echo $((6*7)); exit\n'))
await terminal.wait()
assert.ok(output.includes('42'))
const url = await sandbox.downloadUrl('a/b.txt')
assert.equal(await (await fetch(url)).text(), 'hi')
await sandbox.kill()
assert.equal(await sandbox.isRunning(), false)
await assert.rejects(sandbox.commands.run('true'))

const code = await CodeSandbox.create({ timeoutMs: 600_000 })
await code.runCode('x = 41')
assert.equal((await code.runCode('x + 1')).text, '42')
const { results } = await code.runCode(
  'display({"image/svg+xml": "<svg/>", "application/json": {"a": 1}}, raw=True)')
assert.equal(results[0].svg, '<svg/>')
assert.deepEqual(results[0].json, { a: 1 })
await code.kill()
console.log('done')
// Old ones leave timers of a minute behind.
process.exit(0)
