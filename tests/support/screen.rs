//! A program that draws on a whole terminal: what it shows, and the modes that it leaves.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::{PATIENCE, Place, has, open_pty, wait};

/// A program with a terminal of its own, whose session it leads.
pub struct Screen {
    master: File,
    /// Open for as long as the modes are of interest.
    slave: File,
    modes: Termios,
    terminal: vt100::Parser,
    pub child: Child,
}

impl Screen {
    /// Starts a program below `work`, on a terminal with so many columns and lines; none if that is impossible here.
    pub fn open(
        place: &Place,
        words: &[&str],
        (columns, lines): (u16, u16),
        environment: &[(&str, &str)],
    ) -> Option<Screen> {
        if !has("setsid") {
            return None;
        }
        let (master, slave) = open_pty();
        let modes = tcgetattr(&slave).unwrap();
        let mut command = place.program("setsid");
        command
            .arg("--ctty")
            .args(words)
            .current_dir(&place.work)
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color")
            .envs(environment.iter().copied())
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave.try_clone().unwrap()));
        resize(&master, columns, lines);
        let child = command.spawn().unwrap();
        let terminal = vt100::Parser::new(positive(lines), positive(columns), 0);
        Some(Screen { master, slave, modes, terminal, child })
    }

    pub fn keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// What the screen shows.
    pub fn text(&self) -> String {
        self.terminal.screen().contents()
    }

    /// Waits until the screen is as it should be; returns what it shows.
    #[track_caller]
    pub fn until(&mut self, is_it: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if is_it(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "the screen shows:\n{text}");
            self.listen(Duration::from_secs(1));
        }
    }

    /// Waits until the screen shows `text`; returns all that it shows.
    #[track_caller]
    pub fn shows(&mut self, text: &str) -> String {
        self.until(|shown| shown.contains(text))
    }

    /// Types keys, and waits until the screen shows `text`.
    #[track_caller]
    pub fn press(&mut self, keys: &str, text: &str) -> String {
        self.keys(keys);
        self.shows(text)
    }

    pub fn resize(&mut self, columns: u16, lines: u16) {
        self.terminal.screen_mut().set_size(positive(lines), positive(columns));
        resize(&self.master, columns, lines);
    }

    /// Whether anything is in colour.
    pub fn has_colour(&self) -> bool {
        let screen = self.terminal.screen();
        let (lines, columns) = screen.size();
        let mut cells = (0..lines.get())
            .flat_map(|line| (0..columns.get()).filter_map(move |column| screen.cell(line, column)));
        cells.any(|cell| cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default)
    }

    /// Whether the cell at a column of a line is in reverse video.
    pub fn is_reversed(&self, column: u16, line: u16) -> bool {
        self.terminal.screen().cell(line, column).is_some_and(vt100::Cell::inverse)
    }

    /// Waits for the end, at which the terminal has to be as it was; returns what is shown then, too.
    #[track_caller]
    pub fn end(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        while self.listen(Duration::ZERO) {}
        self.has_modes_of_before();
        (status, self.text())
    }

    /// Takes the terminal away, and waits for the end.
    pub fn hang_up(&mut self) -> ExitStatus {
        self.master = File::open("/dev/null").unwrap();
        wait(&mut self.child)
    }

    /// Asserts that the terminal is as it was when the program was started.
    #[track_caller]
    pub fn has_modes_of_before(&self) {
        let now = tcgetattr(&self.slave).unwrap();
        let modes =
            |modes: &Termios| (modes.input_modes, modes.output_modes, modes.control_modes, modes.local_modes);
        assert_eq!(modes(&now), modes(&self.modes));
        let screen = self.terminal.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "{}", self.text());
    }

    /// Takes in what comes within this time; whether anything came.
    fn listen(&mut self, patience: Duration) -> bool {
        let mut fds = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        let is_ready = poll(&mut fds, PollTimeout::try_from(patience).unwrap()).unwrap() > 0;
        let mut bytes = [0; 1 << 16];
        let count = if is_ready { self.master.read(&mut bytes).unwrap_or(0) } else { 0 };
        self.terminal.process(&bytes[..count]);
        count > 0
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn positive(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

fn resize(master: &File, columns: u16, lines: u16) {
    tcsetwinsize(master, Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}
