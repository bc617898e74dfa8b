//! The streams of a verb: its result goes to standard output, messages go to standard error.
//!
//! Also what a terminal needs: its width, colours, and escapes for whatever from a snapshot could move
//! its cursor.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Seek as _, Write};
use std::os::fd::AsFd as _;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::Value;

use super::paths::must_be_quoted;

/// The result could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write to standard output: {0}")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether the reader has closed the pipe, which is no error.
    pub fn is_closed_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// How the result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputFormat {
    /// Whether it goes to a terminal.
    pub terminal: bool,
    /// Whether to use colours.
    pub colour: bool,
    /// The number of columns; none if nothing is cut to a width.
    pub width: Option<usize>,
}

impl OutputFormat {
    /// For a pipe or a file: no colour, no width.
    pub const PLAIN: OutputFormat = OutputFormat { terminal: false, colour: false, width: None };

    /// `value` between the escapes of `style`, where colours are on.
    pub fn paint<T: fmt::Display>(self, style: Style, value: T) -> Painted<T> {
        Painted { style: if self.colour { style } else { Style::new() }, value }
    }

    /// Writes a line in `style`, the line feed outside of it.
    pub fn line(self, out: &mut dyn Write, style: Style, text: fmt::Arguments<'_>) -> io::Result<()> {
        writeln!(out, "{}", self.paint(style, text))
    }

    /// The format for standard output, which depends on NO_COLOR, CLICOLOR and TERM, too.
    pub fn of_standard_output() -> OutputFormat {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        // If the terminal does not tell its width, it is the traditional one.
        let columns = || terminal_size::terminal_size_of(&stdout).map_or(80, |(width, _)| width.0);
        OutputFormat {
            terminal,
            colour: anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never,
            width: terminal.then(|| usize::from(columns()).clamp(40, 200)),
        }
    }
}

/// The colours of the verbs: some of the sixteen that every terminal theme defines.
pub mod style {
    use super::{AnsiColor, Style};

    /// A heading.
    pub const HEADING: Style = Style::new().bold();
    /// What was added.
    pub const ADDED: Style = AnsiColor::Green.on_default();
    /// What was taken away.
    pub const REMOVED: Style = AnsiColor::Red.on_default();
    /// What was changed, and warnings.
    pub const CHANGED: Style = AnsiColor::Magenta.on_default();
    /// The position of a hunk.
    pub const HUNK: Style = AnsiColor::Cyan.on_default();
    /// Details.
    pub const FAINT: Style = Style::new().dimmed();
}

/// A line of a recorded file for a terminal, with control characters, bidirectional controls and bytes
/// that are not UTF-8 escaped.
pub fn visible(line: &[u8]) -> String {
    let mut out = String::with_capacity(line.len());
    for chunk in line.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\t' | '"' | '\\' => out.push(char),
                '\0'..='\x1f' | '\x7f' => out.extend(['^', char::from(char as u8 ^ 0x40)]),
                char if must_be_quoted(char) => out.extend(char.escape_unicode()),
                char => out.push(char),
            }
        }
        out.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    out
}

/// What a verb has to tell a caller within this process.
#[derive(Debug, Default)]
pub struct Collected {
    /// The object that `--json` prints.
    pub value: Option<Value>,
    /// The messages, without the name of the program.
    pub messages: Vec<String>,
}

/// The two streams of a verb.
pub struct Console<'a> {
    result: BufWriter<Box<dyn Write + 'a>>,
    messages: Box<dyn Write + 'a>,
    /// Whether these are the standard streams.
    pub is_standard: bool,
    collected: Option<&'a mut Collected>,
    /// What the result is shown on.
    pub format: OutputFormat,
}

impl Console<'static> {
    /// Standard output and standard error.
    pub fn standard() -> Console<'static> {
        // The buffer of std flushes at each line; with the lock held, only ours does.
        let result: Box<dyn Write> = Box::new(io::stdout().lock());
        Console {
            result: BufWriter::with_capacity(64 << 10, result),
            messages: Box::new(io::stderr()),
            is_standard: true,
            collected: None,
            format: OutputFormat::of_standard_output(),
        }
    }
}

impl<'a> Console<'a> {
    /// Writes to the given streams.
    pub fn new(result: impl Write + 'a, messages: impl Write + 'a, format: OutputFormat) -> Console<'a> {
        let (result, messages) = (BufWriter::new(Box::new(result) as Box<dyn Write>), Box::new(messages));
        Console { result, messages, is_standard: false, collected: None, format }
    }

    /// Collects the JSON object and the messages, and writes nothing.
    pub fn collecting(collected: &'a mut Collected) -> Console<'a> {
        Console { collected: Some(collected), ..Console::new(io::sink(), io::sink(), OutputFormat::PLAIN) }
    }

    /// Writes a part of the result; what `write!` calls.
    pub fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> Result<(), OutputError> {
        Ok(self.result.write_fmt(text)?)
    }

    /// Writes bytes of the result as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        Ok(self.result.write_all(bytes)?)
    }

    /// The result as a writer.
    pub fn sink(&mut self) -> &mut dyn Write {
        &mut self.result
    }

    /// Standard output as a file, if it is a regular file and the result is appended to it.
    pub fn regular_file(&mut self) -> io::Result<Option<File>> {
        if !self.is_standard {
            return Ok(None);
        }
        self.result.flush()?;
        let mut file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let metadata = file.metadata()?;
        let is_at_end = metadata.is_file()
            && (file.stream_position()? == metadata.len()
                || rustix::fs::fcntl_getfl(&file)?.contains(rustix::fs::OFlags::APPEND));
        Ok(is_at_end.then_some(file))
    }

    /// Writes `value` as one JSON object and a line feed; indented on a terminal.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), OutputError> {
        if let Some(collected) = &mut self.collected {
            collected.value = Some(serde_json::to_value(value).map_err(io::Error::from)?);
            return Ok(());
        }
        let written = if self.format.terminal {
            serde_json::to_writer_pretty(&mut self.result, value)
        } else {
            serde_json::to_writer(&mut self.result, value)
        };
        written.map_err(io::Error::from)?;
        self.bytes(b"\n")
    }

    /// `value` between the escapes of `style`, where colours are on.
    pub fn paint<T: fmt::Display>(&self, style: Style, value: T) -> Painted<T> {
        self.format.paint(style, value)
    }

    /// Flushes the result.
    pub fn flush(&mut self) -> Result<(), OutputError> {
        Ok(self.result.flush()?)
    }

    /// Writes a message to standard error, after the result so far.
    pub fn say(&mut self, message: fmt::Arguments<'_>) {
        if let Some(collected) = &mut self.collected {
            collected.messages.push(message.to_string());
            return;
        }
        self.tell(format!("agent-snapshot: {message}\n"));
    }

    /// Writes a message with one call, so that it is not mixed with the output of other processes.
    fn tell(&mut self, message: String) {
        // If neither stream can be written, nobody can be told.
        let _ = self.result.flush();
        let _ = self.messages.write_all(message.as_bytes());
    }

    /// A message with a list beneath it, which is cut if it is long; nothing if it is empty.
    pub fn say_list(
        &mut self,
        message: fmt::Arguments<'_>,
        items: impl ExactSizeIterator<Item: fmt::Display>,
    ) {
        const SHOWN: usize = 20;
        let more = items.len().saturating_sub(SHOWN);
        let mut text = String::new();
        for item in items.take(SHOWN) {
            text += &format!("\n  {item}");
        }
        if more > 0 {
            text += &format!("\n  and {more} more");
        }
        if !text.is_empty() {
            self.say(format_args!("{message}{text}"));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_a_terminal_is_visible() {
        assert_eq!(visible(b"a\tb \x1b[2J\r"), "a\tb ^[[2J^M");
        assert_eq!(visible("ü\u{202e}\u{9b}".as_bytes()), "ü\\u{202e}\\u{9b}");
        assert_eq!(visible(b"caf\xe9\x9b"), "caf\\xe9\\x9b");
    }

    #[test]
    fn a_long_list_is_cut() {
        let mut messages = Vec::new();
        let mut console = Console::new(io::sink(), &mut messages, OutputFormat::PLAIN);
        console.say_list(format_args!("none:"), [0; 0].iter());
        console.say_list(format_args!("many:"), 0..22_usize);
        drop(console);
        let text = String::from_utf8(messages).unwrap();
        assert!(
            text.starts_with("agent-snapshot: many:\n  0\n") && text.ends_with("  19\n  and 2 more\n"),
            "{text}"
        );
    }
}
