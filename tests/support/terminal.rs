//! A person at a terminal: keys that are typed to an interactive shell, and what it shows.

use std::fs;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{PATIENCE, Place, has, open_pty, wait};

/// An interactive bash that has a terminal of its own.
pub struct Terminal {
    pub master: File,
    pub shell: Child,
    /// What was shown, from where the last answer ended.
    pub shown: String,
    pub place: Rc<Place>,
}

/// The processes of a group, for a test that fails.
fn group(group: i32) -> String {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let stats = processes
        .filter_map(|entry| Some((entry.path(), fs::read_to_string(entry.path().join("stat")).ok()?)));
    let of = |stat: &str| {
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().nth(2) == Some(&group.to_string())
    };
    stats
        .filter(|(_, stat)| of(stat))
        .map(|(path, stat)| {
            let status = fs::read_to_string(path.join("status")).unwrap_or_default();
            let signals: Vec<_> =
                status.lines().filter(|line| line.contains("Pnd") || line.contains("Tracer")).collect();
            format!(
                "\n{} {signals:?} {}",
                stat.chars().take(60).collect::<String>(),
                fs::read_to_string(path.join("wchan")).unwrap_or_default()
            )
        })
        .collect()
}

/// Whether a process of a group is stopped.
fn is_stopped(group: i32) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.any(|stat| {
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, of) = (fields.next(), fields.nth(1));
        of == Some(&group.to_string()) && matches!(state, Some("T" | "t"))
    })
}

impl Terminal {
    /// An interactive bash with this environment, started by `words`; none where there is no such shell.
    pub fn new(
        place: impl Into<Rc<Place>>,
        words: &[&str],
        environment: &[(&str, &str)],
    ) -> Option<Terminal> {
        let words = [words, &["bash", "--norc", "--noprofile", "-i"]].concat();
        has("bash").then(|| Terminal::with(place, &words, environment)).flatten()
    }

    /// A shell with this environment.
    pub fn with(
        place: impl Into<Rc<Place>>,
        shell: &[&str],
        environment: &[(&str, &str)],
    ) -> Option<Terminal> {
        let place = place.into();
        if !has("setsid") {
            return None;
        }
        let (master, slave) = open_pty();
        let mut command = place.program("setsid");
        command
            .args(["--ctty", "--wait"])
            .args(shell)
            .envs([("PS1", "$ "), ("TERM", "dumb"), ("HISTFILE", "")])
            .envs(environment.iter().copied())
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave));
        let shell = command.spawn().unwrap();
        let mut terminal = Terminal { master, shell, shown: String::new(), place };
        terminal.until("$ ");
        Some(terminal)
    }

    pub fn keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown; what was shown before it.
    pub fn until(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            if Instant::now() >= deadline {
                let owner = nix::unistd::tcgetpgrp(&self.master).unwrap();
                panic!(
                    "{text:?} was not shown, but {:?}; in front of the terminal: {}",
                    self.shown,
                    group(owner.as_raw())
                );
            }
            self.listen(1000);
        }
    }

    /// Takes in what comes, for so many milliseconds.
    pub fn listen(&mut self, patience: u16) {
        let mut fds = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(patience)).unwrap() > 0 {
            let mut bytes = [0; 4096];
            let count = self.master.read(&mut bytes).unwrap_or(0);
            assert!(count > 0, "the shell has ended: {:?}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }

    /// Types a line and waits for what must be shown.
    ///
    /// What is typed while a shell takes its terminal back is lost without an echo, alone as recorded.
    pub fn line(&mut self, line: &str, text: &str) {
        self.shown.clear();
        for _ in 0..20 {
            self.keys(&format!("{line}\n"));
            self.listen(1000);
            if !self.shown.is_empty() {
                break;
            }
        }
        self.until(text);
    }

    /// Stops the command with Ctrl-Z and waits for the prompt.
    pub fn stop(&mut self, prompt: &str) {
        self.keys("\x1a");
        self.until("Stopped");
        self.until(prompt);
    }

    /// Continues the stopped job, and waits until the terminal is its own: until then keys are the
    /// shell's.
    pub fn foreground(&mut self, command: &str, text: &str) {
        let shell = nix::unistd::tcgetpgrp(&self.master).unwrap();
        self.line(command, text);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let owner = nix::unistd::tcgetpgrp(&self.master).unwrap();
            // A key that stops is lost on a group that is about to be continued.
            if owner != shell && !is_stopped(owner.as_raw()) {
                break;
            }
            if Instant::now() >= deadline {
                self.listen(1000);
                let owner = group(owner.as_raw());
                panic!("{command} gives nobody the terminal, but {:?}; in front of it: {owner}", self.shown);
            }
            std::thread::yield_now();
        }
    }

    /// The status of the last command.
    pub fn status(&mut self, expected: i32) {
        self.line("echo status:$?.", &format!("status:{expected}."));
    }

    pub fn end(mut self) -> Rc<Place> {
        self.keys("exit\n");
        wait(&mut self.shell);
        self.place
    }
}
