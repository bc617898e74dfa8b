//! Where a verb writes: the result to standard output, messages to standard error.
//!
//! Knows what a terminal is: its width, whether it wants colour, and that nothing from a snapshot may
//! move its cursor.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal as _, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

/// The result could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write to standard output: {0}")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether nobody reads the output any more, which is no fault.
    pub fn is_closed_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// What the result is shown on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Whether it is a terminal.
    pub terminal: bool,
    /// Whether to use colours.
    pub colour: bool,
    /// Columns to fill; none where nothing is to be cut to a width.
    pub width: Option<usize>,
}

impl Look {
    /// Neither colour nor width: a pipe or a file.
    pub const PLAIN: Look = Look { terminal: false, colour: false, width: None };

    /// What standard output is, honouring NO_COLOR, CLICOLOR and a terminal that is dumb.
    pub fn of_standard_output() -> Look {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        // A width that the terminal does not tell is the one of old.
        let columns = || terminal_size::terminal_size_of(&stdout).map_or(80, |(width, _)| width.0);
        Look {
            terminal,
            colour: anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never,
            width: terminal.then(|| usize::from(columns()).clamp(40, 200)),
        }
    }
}

/// The colours of the verbs: of the sixteen that every terminal theme defines, for light and dark.
pub mod style {
    use super::{AnsiColor, Style};

    /// A heading.
    pub const HEADING: Style = Style::new().bold();
    /// What was added.
    pub const ADDED: Style = AnsiColor::Green.on_default();
    /// What was taken away.
    pub const REMOVED: Style = AnsiColor::Red.on_default();
    /// What was changed, and what asks for attention.
    pub const CHANGED: Style = AnsiColor::Yellow.on_default();
    /// Where in a file.
    pub const HUNK: Style = AnsiColor::Cyan.on_default();
    /// What matters less.
    pub const FAINT: Style = Style::new().dimmed();
}

/// The two streams of a verb.
pub struct Console<'a> {
    result: BufWriter<Box<dyn Write + 'a>>,
    messages: Box<dyn Write + 'a>,
    /// What the result is shown on.
    pub look: Look,
}

impl Console<'static> {
    /// Standard output and standard error.
    pub fn standard() -> Console<'static> {
        // Rust's own buffer flushes at each line; the lock keeps it out of the way of ours.
        let result: Box<dyn Write> = Box::new(io::stdout().lock());
        Console {
            result: BufWriter::with_capacity(64 << 10, result),
            messages: Box::new(io::stderr()),
            look: Look::of_standard_output(),
        }
    }
}

impl<'a> Console<'a> {
    /// Two streams of the caller's.
    pub fn new(result: impl Write + 'a, messages: impl Write + 'a, look: Look) -> Console<'a> {
        Console { result: BufWriter::new(Box::new(result)), messages: Box::new(messages), look }
    }

    /// Writes a part of the result; what `write!` calls.
    pub fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> Result<(), OutputError> {
        Ok(self.result.write_fmt(text)?)
    }

    /// Writes bytes of the result as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        Ok(self.result.write_all(bytes)?)
    }

    /// The result as a sink for what streams.
    pub fn sink(&mut self) -> &mut dyn Write {
        &mut self.result
    }

    /// Writes `value` as one JSON object and a line feed: indented on a terminal.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), OutputError> {
        let written = if self.look.terminal {
            serde_json::to_writer_pretty(&mut self.result, value)
        } else {
            serde_json::to_writer(&mut self.result, value)
        };
        written.map_err(io::Error::from)?;
        self.bytes(b"\n")
    }

    /// `value` between the escapes of `style`, where colours are on.
    pub fn paint<T: fmt::Display>(&self, style: Style, value: T) -> Painted<T> {
        Painted { style: if self.look.colour { style } else { Style::new() }, value }
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> Result<(), OutputError> {
        Ok(self.result.flush()?)
    }

    /// A message, as a sentence, on standard error; after what was written of the result so far.
    pub fn say(&mut self, message: fmt::Arguments<'_>) {
        // If neither stream takes anything there is nobody left to tell.
        let _ = self.result.flush();
        let _ = writeln!(self.messages, "agent-snapshot: {message}");
    }
}

/// A value with a style around it.
pub struct Painted<T> {
    style: Style,
    value: T,
}

impl<T: fmt::Display> fmt::Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.style)?;
        self.value.fmt(f)?;
        write!(f, "{:#}", self.style)
    }
}
