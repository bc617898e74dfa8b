//! `export SNAP FILE`: writes a snapshot as one tar for others. `archive::export` does it; this names the file and reports.

use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use crate::archive::compression::ArchiveCompression;
use crate::archive::export::{ExportOptions, Exported, export};
use crate::cli::{ArchiveCompressionChoice, Export};
use crate::commands::config;
use crate::commands::exit::{Exit, UsageError, VerbResult};
use crate::commands::new_file::NewFile;
use crate::commands::open::open;
use crate::commands::out::{Console, OutputError};
use crate::commands::progress;
use crate::snapshot::secrets::{CommandLines, Redacted, redacted};
use crate::snapshot::{Error, printable};

/// Writes the snapshot `snap` as an archive into `file`.
pub fn run(args: &Export, snap: &Path, file: &Path, console: &mut Console) -> VerbResult {
    let name = file;
    let shown = printable(name.as_os_str().as_encoded_bytes());
    let is_standard = name.as_os_str() == "-";
    let compression = match (args.compress, ArchiveCompression::of_name(name.as_os_str())) {
        (Some(ArchiveCompressionChoice::None), _) => ArchiveCompression::None,
        (Some(ArchiveCompressionChoice::Gz), _) => ArchiveCompression::Gz,
        (Some(ArchiveCompressionChoice::Zst), _) => ArchiveCompression::Zst,
        (None, Some(named)) => named,
        (None, None) if is_standard => ArchiveCompression::None,
        (None, None) => {
            return Err(UsageError(format!(
                "{shown} ends in none of .tar, .tar.gz and .tar.zst: say --compress none, gz or zst"
            ))
            .into());
        }
    };
    if is_standard && args.json {
        return Err(UsageError("--json is about a file, and - names standard output".to_owned()).into());
    }
    if is_standard && console.format.terminal {
        return Err(UsageError("the archive would go to the terminal".to_owned()).into());
    }
    let secrets = config::secrets().map_err(UsageError)?;
    // Before the work, so that a name that is taken is told at once.
    let file = if is_standard { None } else { Some(NewFile::create(name, args.force)?) };
    let snapshot = open(snap, &args.access, console)?;
    if snapshot.header().running {
        let snap = printable(snap.as_os_str().as_encoded_bytes());
        console.say(format_args!(
            "{snap} is still being recorded: it can be exported when its last process has ended"
        ));
        return Ok(Exit::Finding);
    }
    let Redacted { snapshot, withheld, masked } = match args.no_redact {
        true => Redacted::whole(snapshot),
        false => redacted(snapshot, &secrets, CommandLines::Masked),
    };
    let scratch = file.as_ref().map_or_else(std::env::temp_dir, |file| file.directory().to_owned());
    let options = ExportOptions { compression, expand: args.expand, scratch: &scratch };
    let bar = progress::bytes("export", 0);
    let exported = match file {
        None => export(&snapshot, &options, bar.wrap_write(console.sink())).map_err(|error| match error {
            Error::Sink(error) => anyhow::Error::from(OutputError::from(error)),
            error => error.into(),
        })?,
        Some(file) => file.commit_with(|file| {
            let mut out = BufWriter::with_capacity(1 << 20, bar.wrap_write(file));
            let failed = |error: Error| match error {
                Error::Sink(error) => Error::io("write", name)(error),
                error => error,
            };
            let exported = export(&snapshot, &options, &mut out).map_err(failed)?;
            out.flush().map_err(Error::io("write", name))?;
            Ok(exported)
        })?,
    };
    bar.finish_and_clear();
    let of_secrets = (withheld.as_slice(), masked);
    report(args, (!is_standard).then_some(&*shown), &exported, of_secrets, console)
}

fn report(
    args: &Export,
    file: Option<&str>,
    exported: &Exported,
    (withheld, masked): (&[Vec<u8>], bool),
    console: &mut Console,
) -> VerbResult {
    let Exported { bytes, digest, left_out } = exported;
    let left_out: Vec<_> = left_out.iter().filter(|one| withheld.binary_search(&one.path).is_err()).collect();
    let withheld: Vec<_> = withheld.iter().map(|path| printable(path)).collect();
    if let (true, Some(file)) = (args.json, file) {
        let left_out = left_out.iter().map(|one| LeftOutJson {
            state: one.side.name(),
            path: printable(&one.path),
            why: &one.why,
        });
        let left_out = left_out.collect();
        let digest = digest.to_string();
        console.json(&ExportJson { file, bytes: *bytes, digest, withheld, masked, left_out })?;
        return Ok(Exit::Success);
    }
    console.say_list(
        format_args!("withheld, since they look like secrets (--no-redact keeps them):"),
        withheld.iter(),
    );
    if masked {
        console.say(format_args!("values in command lines were masked, since they look like secrets"));
    }
    let left_out: Vec<_> = left_out
        .iter()
        .map(|one| format!("{} ({} the command): {}", printable(&one.path), one.side.name(), one.why))
        .collect();
    console.say_list(format_args!("not under files/:"), left_out.iter());
    if let Some(file) = file {
        writeln!(console, "wrote {file}: {bytes} bytes, {digest}")?;
    }
    Ok(Exit::Success)
}

#[derive(Serialize)]
struct ExportJson<'a> {
    file: &'a str,
    bytes: u64,
    digest: String,
    withheld: Vec<Cow<'a, str>>,
    masked: bool,
    left_out: Vec<LeftOutJson<'a>>,
}

#[derive(Serialize)]
struct LeftOutJson<'a> {
    state: &'static str,
    path: Cow<'a, str>,
    why: &'a str,
}

#[cfg(test)]
mod tests {
    use crate::commands::out::OutputFormat;
    use crate::commands::testing::{BundleTrees, run, run_on};

    #[test]
    fn an_archive_never_goes_to_a_terminal() {
        let bundle = BundleTrees::new();
        bundle.both("file", "x");
        bundle.commit(|_| {});
        let snap = bundle.snap().into_os_string();
        let line = ["export".into(), snap, "-".into()];
        let terminal = OutputFormat { terminal: true, colour: false, width: Some(80) };
        let ran = run_on(terminal, &line);
        assert_eq!((ran.status, ran.out.len()), (2, 0));
        assert_eq!(ran.err, "agent-snapshot: the archive would go to the terminal\n");
        assert_eq!(run(&line).status, 0);
    }
}
