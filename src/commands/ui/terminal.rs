//! The terminal while it shows the view: its modes, the signals that concern it, and its way back.
//!
//! Signals are blocked and taken from a descriptor, so that none arrives while the terminal is half restored.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signalfd::SignalFd;
use ratatui::backend::{Backend as _, CrosstermBackend};
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::termios::tcgetwinsize;

use crate::trace::sys::{self, Tid};

/// The size of a terminal that does not tell it.
const SIZE: (u16, u16) = (80, 24);
/// The most of a terminal that is drawn on, whatever it claims to be.
const LARGEST: (u16, u16) = (1000, 500);

type Backend = CrosstermBackend<Output>;

/// A terminal that shows the view.
pub struct Screen {
    terminal: Terminal<Backend>,
    modes: Arc<Modes>,
    signals: SignalFd,
}

/// What is drawn. That the terminal is gone is noticed where it is read; here the library would report it on standard
/// error, which is gone, too, and panic.
struct Output(BufWriter<File>);

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Whether the terminal has the modes of the view.
struct Modes {
    are_set: AtomicBool,
    output: File,
}

impl Modes {
    fn set(&self) -> io::Result<()> {
        self.are_set.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        execute!(&self.output, EnterAlternateScreen, Hide)
    }

    fn restore(&self) {
        if self.are_set.swap(false, Ordering::SeqCst) {
            // A terminal that is gone needs nothing.
            let _ = execute!(&self.output, Show, LeaveAlternateScreen);
            let _ = disable_raw_mode();
        }
    }
}

/// What the signals that came are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// End by this signal.
    End(i32),
    /// Stop until SIGCONT.
    Stop,
    /// Draw all again.
    Redraw,
}

impl Screen {
    /// Takes the terminal of standard output.
    ///
    /// All threads must be started after this: they inherit that signals are blocked. A panic of any of them restores
    /// the terminal before it is reported.
    ///
    /// # Errors
    /// The terminal can't be given the modes that are needed.
    pub fn open() -> io::Result<Screen> {
        block_signals();
        let signals = sys::signal_descriptor()?;
        // Standard output itself is locked by the console.
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let terminal = of_current_size(&output)?;
        let modes = Arc::new(Modes { are_set: AtomicBool::new(false), output });
        let earlier = std::panic::take_hook();
        let restored = Arc::clone(&modes);
        std::panic::set_hook(Box::new(move |panic| {
            restored.restore();
            earlier(panic);
        }));
        let mut screen = Screen { terminal, modes, signals };
        screen.resume()?;
        Ok(screen)
    }

    /// Draws, unless a panic has restored the terminal.
    ///
    /// # Errors
    /// The terminal can't be written.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        if self.modes.are_set.load(Ordering::SeqCst) {
            self.terminal.draw(draw)?;
        }
        Ok(())
    }

    /// The descriptor that is readable while there are signals.
    pub fn signals(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// Takes one of the signals that came, and says what it is for, if that is anything.
    pub fn take_signal(&self) -> Option<Option<Request>> {
        let signal = self.signals.read_signal().ok()??.ssi_signo.cast_signed();
        Some(match signal {
            libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT if !sys::is_ignored(signal) => {
                Some(Request::End(signal))
            }
            libc::SIGTSTP => Some(Request::Stop),
            libc::SIGCONT | libc::SIGWINCH => Some(Request::Redraw),
            _ => None,
        })
    }

    /// Stops this process, with the terminal as it was before, until it is continued.
    ///
    /// # Errors
    /// The terminal can't be taken again.
    pub fn stop(&mut self) -> io::Result<()> {
        self.modes.restore();
        take_effect(libc::SIGTSTP);
        self.resume()
    }

    /// Takes the terminal, whose modes somebody may have changed since, and has all drawn again.
    ///
    /// # Errors
    /// The terminal can't be given the modes that are needed.
    pub fn resume(&mut self) -> io::Result<()> {
        if self.modes.are_set.load(Ordering::SeqCst) {
            // Otherwise the library takes them for set.
            disable_raw_mode()?;
        }
        self.modes.set()?;
        self.terminal = of_current_size(&self.modes.output)?;
        self.terminal.backend_mut().clear()
    }

    /// Ends this process by a signal, with the terminal as it was before.
    pub fn end_by(self, signal: i32) {
        drop(self);
        take_effect(signal);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.modes.restore();
    }
}

/// A terminal of which nothing is drawn yet. Its size is fixed: otherwise the library would ask the terminal for the
/// position of the cursor whenever the size changes, and wait for its answer.
fn of_current_size(output: &File) -> io::Result<Terminal<Backend>> {
    let (width, height) = tcgetwinsize(output).map_or(SIZE, |size| (size.ws_col, size.ws_row));
    let (width, height) =
        if width == 0 || height == 0 { SIZE } else { (width.min(LARGEST.0), height.min(LARGEST.1)) };
    let viewport = Viewport::Fixed(Rect { x: 0, y: 0, width, height });
    Terminal::with_options(
        CrosstermBackend::new(Output(BufWriter::new(output.try_clone()?))),
        TerminalOptions { viewport },
    )
}

/// Has a signal do to this process what it does by default.
fn take_effect(signal: i32) {
    sys::default_disposition(signal);
    let _ = sys::kill(Tid(std::process::id().cast_signed()), signal);
    sys::unblock_signal(signal);
    block_signals();
}

/// Blocks all signals but those by which the kernel stops a process that changes the terminal's modes in the background.
fn block_signals() {
    sys::block_signals();
    [libc::SIGTTOU, libc::SIGTTIN].into_iter().for_each(sys::unblock_signal);
}
