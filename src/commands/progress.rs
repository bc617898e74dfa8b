//! A progress bar on standard error, if that is a terminal and the work takes a while.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that takes less than this shows no bar.
const DELAY: Duration = Duration::from_millis(300);

/// A bar for `len` steps of `what`; it is hidden if standard error is no terminal.
pub fn bar(what: &'static str, len: usize) -> ProgressBar {
    styled(what, len as u64, "{msg} [{bar:30}] {pos}/{len} {eta}")
}

/// The same for `len` bytes; with 0, which stands for an unknown length, they are only counted.
pub fn bytes(what: &'static str, len: u64) -> ProgressBar {
    let template =
        if len == 0 { "{msg} {bytes} {elapsed}" } else { "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}" };
    styled(what, len, template)
}

fn styled(what: &'static str, len: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    // It is hidden if standard error is no terminal.
    draw_after(DELAY, &bar, ProgressDrawTarget::stderr());
    bar
}

/// Draws `bar` on `target` once `delay` has passed, unless it has ended by then.
fn draw_after(delay: Duration, bar: &ProgressBar, target: ProgressDrawTarget) {
    if target.is_hidden() {
        return;
    }
    let bar = bar.downgrade();
    let draw = move || {
        std::thread::sleep(delay);
        // A bar that ends from here on is not drawn either: the ticks of one that has ended draw nothing.
        if let Some(bar) = bar.upgrade() {
            bar.set_draw_target(target);
            bar.enable_steady_tick(Duration::from_millis(200));
        }
    };
    // Without the thread there is no bar, and the work is done all the same.
    let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(draw);
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use indicatif::TermLike;

    use super::*;

    /// A terminal that passes on what is written to it.
    #[derive(Debug)]
    struct Terminal(Sender<String>);

    impl Terminal {
        fn open() -> (ProgressDrawTarget, Receiver<String>) {
            let (sender, written) = channel();
            (ProgressDrawTarget::term_like(Box::new(Terminal(sender))), written)
        }

        fn write(&self, text: &str) -> io::Result<()> {
            self.0.send(text.to_owned()).map_err(io::Error::other)
        }
    }

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.write(text)
        }

        fn clear_line(&self) -> io::Result<()> {
            self.write("cleared")
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn work_that_has_ended_before_the_delay_draws_nothing() {
        let (target, written) = Terminal::open();
        let bar = bar("restore", 2);
        draw_after(Duration::from_secs(3600), &bar, target);
        bar.inc(2);
        bar.finish_and_clear();
        assert_eq!(written.try_iter().collect::<Vec<_>>(), Vec::<String>::new());
    }

    #[test]
    fn work_that_goes_on_after_the_delay_is_drawn() {
        let (target, written) = Terminal::open();
        let bar = bar("restore", 2);
        draw_after(Duration::ZERO, &bar, target);
        assert!(written.iter().any(|text| text.contains("restore [")));
        bar.finish_and_clear();
    }
}
