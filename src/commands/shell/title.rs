//! What a recording is called: the command line that somebody wanted to be run, without what was wrapped around it.
//!
//! An agent wraps a line in `eval`, between commands that only serve itself; with its sandbox on, it has that run by
//! `bwrap ... agent-snapshot-bash -c LINE`, which is the line of the outer shell. Neighbours: `words.rs` takes a line
//! apart, `record/bundle.rs` knows the processes.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::invocation::{self, Invocation};
use super::words;
use crate::agents::SHELL;
use crate::fs::{self, file_name};
use crate::snapshot::{Exec, RecordedProcess};

/// The name of our shell.
const OUR_SHELL: &[u8] = SHELL.as_bytes();

/// How much of a script is read.
const SCRIPT: u64 = 64 << 10;

/// How deep a line may be wrapped.
const DEPTH: usize = 8;

/// The command line that a shell was given with `-c`, as the agent was asked for it.
pub fn line_of(command: &[impl AsRef<[u8]>]) -> Option<Vec<u8>> {
    let words: Vec<&[u8]> = command.iter().map(AsRef::as_ref).collect();
    let (program, arguments) = words.split_first()?;
    [&b"bash"[..], b"zsh"]
        .contains(&file_name(program))
        .then(|| command_line(arguments).map(unwrapped))
        .flatten()
}

/// The line that a sandbox with these arguments has a shell of ours run.
pub fn sandboxed_line(arguments: &[OsString]) -> Option<Vec<u8>> {
    let words: Vec<&[u8]> = arguments.iter().map(|word| word.as_bytes()).collect();
    let at = words.iter().position(|word| file_name(word) == OUR_SHELL)?;
    command_line(&words[at + 1..]).map(<[u8]>::to_vec)
}

/// The first line of the script that a runner of GitHub Actions has made of a step: the name of its file tells nothing.
pub fn step_line(command: &[Vec<u8>]) -> Option<Vec<u8>> {
    let directory =
        std::env::var_os("RUNNER_TEMP").filter(|_| std::env::var_os("GITHUB_ACTIONS").is_some())?;
    let (script, shell) = command.split_last()?;
    if shell.is_empty() || Path::new(OsStr::from_bytes(script)).parent() != Some(Path::new(&directory)) {
        return None;
    }
    let mut text = Vec::new();
    fs::open_regular(script).ok()?.take(SCRIPT).read_to_end(&mut text).ok()?;
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    let first = lines.next()?;
    Some(if lines.next().is_some() { [first, b" ..."].concat() } else { first.to_vec() })
}

/// The line of a shell of ours inside the command, if the command comes to nothing but starting that: each program on
/// the way has the words of the next one for its last, and no shell on the way has anything else to do.
pub fn inner_line(command: &[impl AsRef<[u8]>], processes: &[RecordedProcess]) -> Option<Vec<u8>> {
    let given = given_lines(processes);
    let mut words: Vec<Vec<u8>> = command.iter().map(|word| word.as_ref().to_vec()).collect();
    let mut found = None;
    for depth in 0..DEPTH {
        let Some(line) = last_line(&words, depth == 0) else { break };
        let is_ours = depth > 0 || file_name(&words[0]) != b"bash";
        let plain = unwrapped(&line);
        if is_ours && given.contains(&line.as_slice()) {
            found = Some(plain.clone());
        }
        match words::only_command(&plain) {
            Some(next) => words = next,
            None => break,
        }
    }
    found
}

/// The programs of sandboxes, in which an agent has a shell run a command.
const SANDBOXES: [&[u8]; 3] = [b"bwrap", b"codex-linux-sandbox", b"apply-seccomp"];

/// The line that an agent wanted to be run, if it has wrapped that, or has a sandbox run it.
pub fn wanted_line(command: &[Vec<u8>], processes: &[RecordedProcess]) -> Option<Vec<u8>> {
    line_of_agent(command).or_else(|| sandboxed_title(processes))
}

/// The line that these words have a shell run, if they are ones that an agent has given it.
fn line_of_agent(words: &[Vec<u8>]) -> Option<Vec<u8>> {
    let line = given_line(words.iter().map(Vec::as_slice))?;
    let plain = unwrapped(&line);
    (plain != line || is_started_by_codex(words)).then_some(plain)
}

/// Whether a program of Codex runs the last of these words, as it does with each command. As long as it has not saved the
/// functions of a shell, it wraps nothing around the line itself.
fn is_started_by_codex(words: &[Vec<u8>]) -> bool {
    match words {
        [_, option, ..] if option == b"--codex-run-as-process-setup" => true,
        [program, ..] => file_name(program) == b"codex-linux-sandbox",
        [] => false,
    }
}

/// The line that an agent wanted to be run in a sandbox, by the processes of that.
fn sandboxed_title(processes: &[RecordedProcess]) -> Option<Vec<u8>> {
    let execs = || processes.iter().flat_map(|process| process.execs.iter().chain([&*process.image]));
    let is_sandbox = |exec: &Exec| {
        let started_as = exec.argv.first().map_or(&b""[..], Vec::as_slice);
        [exec.exe.as_slice(), started_as].iter().any(|path| SANDBOXES.contains(&file_name(path)))
    };
    execs().any(is_sandbox).then(|| execs().find_map(|exec| line_of_agent(&exec.argv))).flatten()
}

/// The line that the last of these words are for, if a shell is among them that they are given to.
pub fn given_line<'w>(words: impl Iterator<Item = &'w [u8]>) -> Option<Vec<u8>> {
    let words: Vec<&[u8]> = words.collect();
    let at = words.iter().rposition(|word| super::SHELLS.contains(&file_name(word)))?;
    let line = command_line(&words[at + 1..])?;
    words.last().is_some_and(|last| std::ptr::eq(*last, line)).then(|| line.to_vec())
}

/// The lines that shells of ours were given.
fn given_lines(processes: &[RecordedProcess]) -> Vec<&[u8]> {
    let is_ours = |exec: &&Exec| {
        let started_as = exec.argv.first().map_or(&b""[..], Vec::as_slice);
        [exec.exe.as_slice(), started_as].iter().any(|path| file_name(path) == OUR_SHELL)
    };
    let of_exec = |exec| {
        let Exec { argv, .. }: &Exec = exec;
        let words: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
        command_line(words.get(1..)?)
    };
    let execs = processes.iter().flat_map(|process| process.execs.iter().chain([&*process.image]));
    execs.filter(is_ours).filter_map(of_exec).collect()
}

/// The line that the last words have a shell run; with `is_whole`, also with parameters behind it if the first word is
/// the shell.
fn last_line(words: &[Vec<u8>], is_whole: bool) -> Option<Vec<u8>> {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let is_shell = |word: &[u8]| [&b"bash"[..], b"sh", OUR_SHELL].contains(&file_name(word));
    let shells = (0..words.len()).rev().filter(|at| is_shell(words[*at]));
    let found = shells.into_iter().find_map(|at| {
        let line = command_line(&words[at + 1..])?;
        let is_last = words.last().is_some_and(|last| std::ptr::eq(*last, line));
        (is_last || is_whole && at == 0).then_some(line)
    });
    found.map(<[u8]>::to_vec)
}

/// The line of `-c`.
fn command_line<'w>(arguments: &[&'w [u8]]) -> Option<&'w [u8]> {
    let owned: Vec<_> = arguments.iter().map(|word| OsStr::from_bytes(word).to_owned()).collect();
    let Invocation::CommandLine(line) = invocation::read(&owned, || false) else { return None };
    let at = owned.iter().position(|word| std::ptr::eq(word.as_bytes(), line))?;
    Some(arguments[at])
}

/// A line without what agents wrap around it.
fn unwrapped(line: &[u8]) -> Vec<u8> {
    std::iter::successors(Some(line.to_vec()), |line| words::wrapped_line(line))
        .take(DEPTH)
        .last()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agents::hook::word;
    use crate::agents::quoted;

    const OURS: &str = "/b/agent-snapshot-bash";

    #[test]
    fn newest_sandbox_of_claude_code_is_seen_through() {
        // What Claude Code 2.1.331 ran, but for the names of files.
        let line = format!(
            "exec 3<&- || exit 126; source /h/s.sh 2>/dev/null || true && export TMPDIR=/tmp/claude-0 && export \
             GIT_CONFIG_PARAMETERS=\"${{GIT_CONFIG_PARAMETERS:+${{GIT_CONFIG_PARAMETERS}} }}'credential.helper='\" && \
             \\builtin shopt -u extglob 2>/dev/null || true && {{ \\builtin unalias -- 'which'; \\builtin unset -f -- \
             'which'; }} >/dev/null 2>&1 || true && eval {} < /dev/null && pwd -P >| /tmp/claude-0/cwd-1f",
            quoted("rm -r src")
        );
        let sealed = format!(
            "{{ socat TCP6-LISTEN:3128,fork UNIX-CONNECT:/tmp/a.sock || exec socat TCP4-LISTEN:3128 \
             UNIX-CONNECT:/tmp/a.sock; }} >/dev/null 2>&1 &\n_srt_http=$!\ntrap 'rc=$?; kill %1 2>/dev/null; exit $rc' EXIT\n\
             while [ -r /proc/net/sockstat ]; do\n  case \"$_srt_kind\" in TCP: | TCP6:) break ;; esac\ndone\n\
             unset _srt_since _srt_http\nSRT_ALLOW_NESTED_USERNS=0 ARGV0=apply-seccomp /proc/self/fd/3 {}",
            run(&[OURS, "-c", &line])
        );
        let wrapped = run(&[OURS, "-c", &sealed]);
        let command = ["bwrap", "--unshare-pid", "--", OURS, "-c", &wrapped];
        let given = processes(&[&[OURS, "-c", &wrapped], &[OURS, "-c", &sealed], &[OURS, "-c", &line]]);
        assert_eq!(inner_line(&command, &given), Some(b"rm -r src".to_vec()));
        let arguments: Vec<OsString> = command[1..].iter().map(OsString::from).collect();
        assert_eq!(sandboxed_line(&arguments), Some(wrapped.into_bytes()));
        assert_eq!(sandboxed_line(&["--version".into()]), None);
        assert_eq!(sandboxed_line(&["--".into(), "rg".into(), "word".into()]), None);
    }

    #[test]
    fn environment_of_codex_is_seen_through() {
        let line = "rm -r src; echo it's\necho '\n\nexec '";
        let set = "__CODEX_SNAPSHOT_OVERRIDE_SET_0=\"${CODEX_VERSION+x}\"\nif [ -n \"${PATH:-}\" ]; then export PATH='/c':\"$PATH\"; fi";
        let wrapped = format!("{set}\n\nexec '/usr/bin/bash' -c {}", quoted(line));
        assert_eq!(line_of(&["/bin/bash", "-lc", &wrapped]), Some(line.as_bytes().to_vec()));
        let other = format!("{set}\n\nexec '/usr/bin/bash' -c {} and more", quoted(line));
        assert_eq!(line_of(&["/bin/bash", "-lc", &other]), Some(other.into_bytes()));
    }

    #[test]
    fn line_that_codex_does_not_wrap_is_found() {
        let line = "ls src; echo \"it's\"";
        let shell = ["/usr/bin/bash", "-lc", line];
        let setup = [&["/proc/self/exe", "--codex-run-as-process-setup", "43", "pipe"][..], &shell].concat();
        let sandbox = [&["codex-linux-sandbox", "--sandbox-policy-cwd", "/repo", "--"][..], &shell].concat();
        let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let wanted = Some(line.as_bytes().to_vec());
        assert_eq!(wanted_line(&words(&setup), &[]), wanted);
        assert_eq!(wanted_line(&words(&sandbox), &[]), wanted);
        assert_eq!(wanted_line(&words(&["codex"]), &processes(&[&sandbox, &shell])), wanted);
        assert_eq!(wanted_line(&words(&[&["env"][..], &shell].concat()), &[]), None);
    }

    /// Processes that executed these command lines of words.
    fn processes(execs: &[&[&str]]) -> Vec<RecordedProcess> {
        let exec = |argv: &&[&str]| Exec {
            exe: argv[0].into(),
            argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
            ..Exec::default()
        };
        let process = |argv| RecordedProcess {
            id: 1,
            pid: 1,
            parent: None,
            image: Arc::new(Exec { exe: b"/bin/bash".to_vec(), ..Exec::default() }),
            cwd: b"/".to_vec(),
            exit_status: None,
            execs: vec![exec(argv)],
            started_us: None,
            ended_us: None,
        };
        execs.iter().map(process).collect()
    }

    fn title(line: &str, given: &[&str]) -> Option<String> {
        let execs: Vec<[&str; 3]> = given.iter().map(|line| [OURS, "-c", line]).collect();
        let execs: Vec<&[&str]> = execs.iter().map(<[&str; 3]>::as_slice).collect();
        let found = inner_line(&["bash", "-c", line], &processes(&execs));
        found.map(|line| String::from_utf8(line).unwrap())
    }

    fn claude(line: &str) -> String {
        let line = quoted(line);
        format!(
            "source /h/s.sh 2>/dev/null || true && shopt -u extglob 2>/dev/null || true && eval {line} \\< /dev/null \
             && pwd -P >| /tmp/claude-1f-cwd"
        )
    }

    /// The words as one line, quoted as agents do.
    fn run(words: &[&str]) -> String {
        words.iter().map(|text| word(text)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn line_of_the_innermost_shell_of_a_sandbox_is_found() {
        let wrapped = claude("rm -r src");
        let inner = run(&[OURS, "-c", &wrapped]);
        // As Anthropic's sandbox-runtime builds its command lines.
        let socat = "socat TCP-LISTEN:3128,fork,reuseaddr UNIX-CONNECT:/tmp/a.sock >/dev/null 2>&1 &\n\
            trap 'rc=$?; kill %1 %2 2>/dev/null; exit $rc' EXIT\n";
        let eval = format!("{socat}eval {}", run(&[&wrapped]));
        let sealed = format!("{socat}/v/apply-seccomp {inner}");
        let sealed_by_name = format!("ARGV0=apply-seccomp /proc/self/fd/3 {inner}");
        let (eval_in, sealed_in) = (run(&[OURS, "-c", &eval]), run(&["/bin/bash", "-c", &sealed]));
        let file = "exec 3<\"$1\" && shift && exec \"$@\"";
        for (outer, given) in [
            (run(&["bwrap", "--new-session", "--", OURS, "-c", &wrapped]), vec![wrapped.as_str()]),
            (run(&["bwrap", "--", OURS, "-c", &eval_in]), vec![&eval_in, &eval]),
            (run(&["bwrap", "--", OURS, "-c", &sealed_in]), vec![&sealed_in, &wrapped]),
            (run(&["bwrap", "--", "bash", "-c", &sealed_by_name]), vec![&wrapped]),
            (
                run(&["/bin/sh", "-c", file, "srt-args", "/p", "bwrap", "--", OURS, "-c", &wrapped]),
                vec![&wrapped],
            ),
        ] {
            assert_eq!(title(&outer, &given).as_deref(), Some("rm -r src"), "{outer}");
            assert_eq!(title(&claude(&outer), &given).as_deref(), Some("rm -r src"), "{outer}");
            assert_eq!(title(&outer, &[]), None, "no shell of ours was given that");
        }
        let direct = [&["bwrap", "--", OURS, "-c", "rm x"][..], &[OURS, "-c", "rm x"]];
        let [given] = [processes(&[&[OURS, "-c", "rm x"]])];
        assert_eq!(inner_line(direct[0], &given), Some(b"rm x".to_vec()));
        assert_eq!(inner_line(direct[1], &given), Some(b"rm x".to_vec()), "run -- agent-snapshot-bash");
    }

    #[test]
    fn line_in_a_sandbox_is_wanted_wherever_the_shell_outside_has_the_words_for_it() {
        let line = claude("rm -r src");
        let sandbox = run(&["bwrap", "--", "bash", "-c", &line]);
        let given = processes(&[&["bwrap", "--", "bash", "-c", &line], &["bash", "-c", &line]]);
        for words in [vec!["sh", "-c", &sandbox], vec!["sh", "-c", "eval \"$1\"; exit $?", "sh", &sandbox]] {
            let command: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            assert_eq!(wanted_line(&command, &given), Some(b"rm -r src".to_vec()), "{words:?}");
        }
    }

    #[test]
    fn command_that_only_happens_to_start_a_shell_of_ours_keeps_its_title() {
        for line in [
            "make",
            "./script",
            "/b/agent-snapshot-bash -c a && /b/agent-snapshot-bash -c b",
            "/b/agent-snapshot-bash -c a; /b/agent-snapshot-bash -c b",
            "make && /b/agent-snapshot-bash -c b",
            "make | /b/agent-snapshot-bash -c b",
            "/b/agent-snapshot-bash -c b | tee log",
            "/b/agent-snapshot-bash -c b; rm x",
            "for i in 1 2; do /b/agent-snapshot-bash -c b; done",
            "if true; then /b/agent-snapshot-bash -c b; fi",
            "echo $(/b/agent-snapshot-bash -c b)",
            "make SHELL=/b/agent-snapshot-bash -c b extra",
            "bash -c 'make; /b/agent-snapshot-bash -c b'",
            "/b/agent-snapshot-bash -c other",
            "/b/agent-snapshot-bash script",
            "",
        ] {
            assert_eq!(title(line, &["a", "b"]), None, "{line}");
            assert_eq!(title(&claude(line), &["a", "b"]), None, "{line}");
        }
        let deep = (0..=DEPTH).fold("b".to_owned(), |line, _| run(&["bash", "-c", &line]));
        assert_eq!(title(&deep, &["b"]), None);
    }
}
