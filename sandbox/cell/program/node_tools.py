"""The `tools` object of a program in JavaScript: its calls go where Python's go.

Like `host_tools` it runs in the program's process and guards nothing. It reads the
request socket by events, as a thread that waits there would hold up `process.exit`.
"""

from __future__ import annotations

from ..wire.contract import ANSWER, MAX_CALL_BYTES
from ..wire.frames import CALLS_AHEAD, RUN_DEFAULTS

_CONSTANTS = (
    "const ANSWER = %d, MAX_CALL_BYTES = %d, CALLS_AHEAD = %d, CALLS_AT_ONCE = %d;"
    % (ANSWER[0], MAX_CALL_BYTES, CALLS_AHEAD, RUN_DEFAULTS["calls_at_once"])
)

RUNNER_PART = (
    _CONSTANTS
    + r"""
class ToolError extends Error {
  constructor(message, kind, retryAfter = null) {
    super(message);
    this.name = 'ToolError';
    this.kind = this.code = kind;
    this.retry_after = retryAfter;
  }
}
const supervisor = {
  waiting: new Map(), made: 0, sent: 0, most: 0, parts: [], held: 0, written: null,
  open() {
    const {Socket} = require('node:net');
    this.reader = this.messages();
    this.needed = this.reader.next().value;
    this.socket = new Socket({fd: REQUEST_FD, readable: true, writable: true});
    this.socket.on('data', (data) => this.take(data));
    for (const end of ['end', 'error']) this.socket.on(end, () => this.close());
    this.socket.unref();
  },
  take(data) {
    this.parts.push(data);
    this.held += data.length;
    while (this.held >= this.needed) {
      const all = Buffer.concat(this.parts), {needed} = this;
      this.parts = [all.subarray(needed)];
      this.held -= needed;
      this.needed = this.reader.next(all.subarray(0, needed)).value;
    }
  },
  // An answer is its mark, a size and JSON; a request is a size and its body.
  *messages() {
    for (;;) {
      const head = yield 9, answers = head[0] === ANSWER, from = answers ? 1 : 0;
      const size = parseInt(head.toString('latin1', from, from + 8), 16);
      if (answers) this.settle(JSON.parse(yield size));
      else this.deliver(Buffer.concat([head.subarray(8), yield size - 1]));
    }
  },
  request() {
    this.socket.ref();
    return new Promise((yes) => {
      this.deliver = (body) => { this.socket.unref(); yes(body); };
    });
  },
  call(name, given) {
    return new Promise((yes, no) => {
      const named = given.length === 1 && isPlain(given[0]);
      const [args, kwargs] = named ? [[], given[0]] : [given, {}];
      const text = Buffer.from(JSON.stringify({name, args, kwargs}));
      if (text.length > MAX_CALL_BYTES) {
        throw new ToolError('the arguments are too large', 'too_large');
      }
      this.waiting.set(++this.made, {yes, no, text});
      // A program goes on while a call is open.
      this.socket.ref();
      this.send();
    });
  },
  // Those past the most that the supervisor reads stay here, where a run can drop them.
  send() {
    const hex = (each) => each.toString(16).padStart(8, '0');
    while (this.sent < this.made &&
        this.waiting.size - (this.made - this.sent) < this.most) {
      const {text} = this.waiting.get(++this.sent);
      this.socket.write(hex(text.length) + hex(this.sent));
      this.written = new Promise((done) => this.socket.write(text, done));
    }
  },
  settle({id, value, error}) {
    const call = this.waiting.get(id);
    if (!call) return;
    this.waiting.delete(id);
    if (!this.waiting.size) this.socket.unref();
    if (error) call.no(new ToolError(error.message, error.code, error.retry_after));
    else call.yes(value);
    this.send();
  },
  forget() {
    this.waiting.clear();
    this.sent = this.made;
    this.socket.unref();
  },
  close() {
    if (lives) process.reallyExit(0);
    for (const {no} of this.waiting.values()) {
      no(new ToolError('the host is gone', 'gone'));
    }
    this.forget();
  },
};
function isPlain(each) {
  const kind = each && typeof each === 'object' && Object.getPrototypeOf(each);
  return kind === Object.prototype || kind === null && each !== null;
}
function offerTools(names, callsAtOnce) {
  if (!names.length) return () => {};
  supervisor.most = CALLS_AHEAD * callsAtOnce;
  let over = false;
  const call = (name) => async (...given) => {
    if (over) throw new ToolError('the run of these tools is over', 'gone');
    return supervisor.call(name, given);
  };
  const tools = Object.fromEntries(names.map((name) => [name, call(name)]));
  Object.assign(globalThis, {ToolError, tools: Object.setPrototypeOf(tools, null)});
  // Half a call would be read as a part of the next run's.
  return () => {
    over = true;
    supervisor.forget();
    return supervisor.written;
  };
}
"""
)
"""The part of node's runner that speaks with the supervisor."""
