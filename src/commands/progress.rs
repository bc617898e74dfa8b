//! A progress bar on standard error, if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

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
    // ProgressBar draws on standard error, and only if that is a terminal.
    let bar = ProgressBar::new(len);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
