// Starts a program of this platform's package: in place of Node where that has process.execve, else as its child.
"use strict";

const { spawn } = require("node:child_process");
const path = require("node:path");

const fail = (message) => {
  console.error(`agent-snapshot: ${message}`);
  process.exit(125);
};

module.exports = (name) => {
  const platform = `${process.platform}-${process.arch}`;
  let directory;
  try {
    directory = path.dirname(require.resolve(`@agent-snapshot/${platform}/package.json`));
  } catch {
    fail(`the package @agent-snapshot/${platform} is not installed: npm installs it on Linux (x64, arm64) with optional dependencies`);
  }
  const program = path.join(directory, "bin", name);
  const args = process.argv.slice(2);
  // A terminal sends the first two to the program, too. Node ignores the others, and exec(2) resets only what has a handler.
  for (const signal of ["SIGINT", "SIGQUIT", "SIGPIPE", "SIGXFSZ"]) process.on(signal, () => {});
  if (process.execve) process.execve(program, [program, ...args], process.env);
  const child = spawn(program, args, { stdio: "inherit" });
  for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("error", (error) => fail(`execute ${program}: ${error.message}`));
  child.on("exit", (status, signal) => {
    if (signal === null) process.exit(status);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  });
};
