//! Opens of a process with several threads, which the recorder makes for it: the process does not notice it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::support::{BINARY, Place, User, has, is_root};

/// Opens files in many ways while another thread lives, and prints all that a program can ask of what it has opened.
const OPENS: &str = r#"
import ctypes, errno, fcntl, os, resource, threading, itertools
libc = ctypes.CDLL(None, use_errno=True)
libc.open.restype = libc.openat.restype = ctypes.c_int
end = threading.Event()
other = threading.Thread(target=end.wait, daemon=True)
other.start()

def opened(fd):
    if fd < 0: return errno.errorcode[ctypes.get_errno()]
    info = dict(line.split(":", 1) for line in open(f"/proc/self/fdinfo/{fd}").read().splitlines()[:4])
    try: content = os.read(fd, 4)
    except OSError as error: content = errno.errorcode[error.errno]
    name = os.readlink(f"/proc/self/fd/{fd}")
    name = "/proc" if name.startswith("/proc/") else os.path.relpath(name)
    flags = [fcntl.fcntl(fd, which) for which in (fcntl.F_GETFL, fcntl.F_GETFD)]
    os.close(fd)
    return fd, flags, info["pos"].strip(), info["flags"].strip(), info["mnt_id"].strip(), name, content

directory = os.open("d", os.O_RDONLY)
removed = os.open("gone", os.O_RDONLY)
os.rmdir("gone")
flags = ["CLOEXEC", "NONBLOCK", "NOFOLLOW", "DIRECTORY", "NOATIME", "NOCTTY", "PATH", "SYNC"]
flags = [0] + [getattr(os, "O_" + flag) for flag in flags] + [0o100000, os.O_NOFOLLOW | os.O_DIRECTORY, 1 << 30]
names = ["f", os.path.abspath("f"), "f/", "d", "d/", ".", "..", "d/../f", "d/inner", "./d//inner", "link", "links",
         "link/", "dangling", "loop", "missing", "missing/f", "f/f", "", "x" * 255, "x" * 256, "d/" * 2500 + "f",
         "secret", "closed/f", "/proc/self/comm", "/proc/thread-self/comm", "/proc/self/cwd/f", "/proc/version",
         "/dev/null", "/dev/fd/%d/inner" % directory, "/sys/kernel/mm/transparent_hugepage/enabled", "fifo"]
for name, flag in itertools.product(names, flags):
    if name == "fifo" and not flag & os.O_NONBLOCK: continue
    print(name.removeprefix(os.getcwd())[:20], oct(flag), opened(libc.open(name.encode(), flag)))
for name in ["inner", "../f", "", "missing", "/dev/null"]:
    for fd in [directory, removed, 77, -100]:
        if (fd, name) == (removed, "../f"): continue  # docs/limits.md: nothing begins there under rules
        print("at", name, fd, opened(libc.openat(fd, name.encode(), 0)))
print("fault", libc.open(ctypes.c_void_p(8), 0), ctypes.get_errno())

# What the last close of a file ends has ended when close returns.
other_open = os.open("d/inner", os.O_RDONLY)
for _ in range(100):
    file = os.open("d/inner", os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(file)
    fcntl.flock(other_open, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other_open, fcntl.LOCK_UN)
os.close(other_open)
file = os.open("f", os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("lease", fcntl.fcntl(file, fcntl.F_GETLEASE), opened(libc.open(b"f", 0)))
os.close(file)

# The lowest free number, and none beyond the limit.
os.close(directory)
print("lowest", libc.open(b"f", 0) == directory)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
while libc.open(b"f", 0) >= 0: pass
print("full", errno.errorcode[ctypes.get_errno()], libc.open(b"missing", 0), ctypes.get_errno())
os.closerange(20, 40)

os.mkdir("cwd"); os.chdir("cwd"); os.rmdir("../cwd")
print("no cwd", [(libc.open(name, 0), ctypes.get_errno()) for name in (b"f", b".", b"../f")])
end.set(); other.join()
"#;

fn place_of(user: User) -> Place {
    let place = Place::of(user);
    for (name, content) in [("f", "content"), ("d/inner", "inner"), ("secret", "secret"), ("closed/f", "f")] {
        place.write(name, content);
    }
    place.write("opens.py", OPENS);
    let prepare = "mkdir gone; ln -s f link; ln -s d/../link links; ln -s nowhere dangling; ln -s loop loop
        mkfifo fifo; chmod 0 secret closed";
    assert!(place.program("sh").args(["-euc", prepare]).status().unwrap().success());
    place
}

fn printed_by(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{command:?} {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn opens_of_a_process_with_threads_are_as_alone() {
    if !has("python3") {
        return;
    }
    let program = &["python3", "opens.py"][..];
    let ways = [
        ("run --quiet --strict --", program),
        ("run --quiet --strict --enforce --deny-read absent --", program),
        ("session --quiet --enforce --deny-read absent --", program),
        (
            "session --quiet --enforce --deny-read absent --",
            &["sh", "-c", "sh -c 'exec python3 opens.py'; exit $?"],
        ),
    ];
    for &user in User::all() {
        let place = place_of(user);
        let mut alone = place.program("python3");
        alone.arg("opens.py");
        let alone = printed_by(&mut alone);
        for (verb, program) in ways {
            let place = place_of(user);
            let mut command = place.command();
            command.args(verb.split(' ')).args(program);
            let recorded = printed_by(&mut command);
            for (alone, recorded) in alone.lines().zip(recorded.lines()) {
                assert_eq!(alone, recorded, "{user:?} {verb} {program:?}");
            }
            assert_eq!(alone.lines().count(), recorded.lines().count(), "{verb} {program:?}");
        }
    }
}

/// A Python program with a second thread, which waits.
fn threaded(script: &str) -> [String; 3] {
    const BEGIN: &str = "import ctypes, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
threading.Thread(target=threading.Event().wait, daemon=True).start()
def content(name):
    with open(name, 'rb', 0) as file: return file.read(40)
";
    ["python3".to_owned(), "-c".to_owned(), format!("{BEGIN}{script}\nsys.stdout.flush(); os._exit(0)")]
}

/// The files below a place that its recording says were read.
fn files_read(place: &Place) -> Vec<String> {
    let recorded = place.recorded(&place.snapshot());
    recorded.iter().filter_map(|line| line.strip_suffix(" read")).map(str::to_owned).collect()
}

#[test]
fn what_is_opened_through_a_descriptor_that_another_thread_exchanges_is_listed() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    let names: Vec<String> =
        (0..1000).flat_map(|number| [format!("a/{number}"), format!("b/{number}")]).collect();
    for name in &names {
        place.write(name, name);
    }
    let script = "
a, b = os.open('a', 0), os.open('b', 0)
os.dup2(a, 100)
is_over = False
def exchange():
    while not is_over: os.dup2(b, 100); os.dup2(a, 100)
other = threading.Thread(target=exchange); other.start()
for number in range(1000):
    file = os.open(str(number), 0, dir_fd=100); os.read(file, 1); os.close(file)
is_over = True; other.join()
for number in range(1000):
    for directory in (a, b): os.close(os.open(str(number), 0, dir_fd=directory))";
    let output = place.recording().args(threaded(script)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let read = files_read(&place);
    let missing: Vec<&String> = names.iter().filter(|name| !read.contains(name)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn what_is_opened_through_a_symlink_that_is_exchanged_outside_is_listed() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    for name in ["1", "2", "d1/f", "d2/f"] {
        place.write(name, name);
    }
    for (link, target) in [("link", "1"), ("new", "2"), ("d", "d1"), ("e", "d2")] {
        symlink(target, place.at(link)).unwrap();
    }
    let script = "
for _ in range(3):
    print(content('link'), content('d/f'), flush=True)
    sys.stdin.readline()";
    let mut command = place.recording();
    command.args(threaded(script)).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = BufReader::new(output).lines();
    for expected in ["b'1' b'd1/f'", "b'2' b'd2/f'", "b'1' b'd1/f'"] {
        assert_eq!(lines.next().unwrap().unwrap(), expected);
        for (one, other) in [("link", "new"), ("d", "e")] {
            let (one, other) = (place.at(one), place.at(other));
            renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
        }
        input.write_all(b"\n").unwrap();
    }
    assert!(child.wait().unwrap().success());
    let read = files_read(&place);
    assert_eq!(read, ["1", "2", "d1/f", "d2/f"]);
}

#[test]
fn procfs_shows_a_process_itself_wherever_it_is_mounted() {
    if !has("python3") || !is_root() {
        return;
    }
    let place = Place::new();
    let [program, option, script] = threaded(
        "print(content('p/self/comm'), content('p/thread-self/comm'), os.readlink('p/self') == str(os.getpid()))
print(content('p/self/stat').split()[0] == str(os.getpid()).encode(), content('p/self/cwd/f'))",
    );
    place.write("f", "f");
    std::fs::create_dir(place.at("p")).unwrap();
    let mount = r#"mount -t proc proc p; exec "$0" "$@""#;
    let printed = |verb: &[&str]| {
        let mut command = place.program("unshare");
        printed_by(command.args(["--mount", "sh", "-euc", mount]).arg(BINARY).args(verb))
    };
    let run = ["run", "--quiet", "--", &program, &option, &script];
    assert_eq!(printed(&run), "b'python3\\n' b'python3\\n' True\nTrue b'f'\n");
    let session = ["session", "--quiet", "--enforce", "--deny-read", "absent", "--", "cat", "p/self/comm"];
    assert_eq!(printed(&session), "cat\n");
}

#[test]
fn an_open_that_the_tree_has_to_permit_waits_for_it_alone() {
    if !has("python3") || !is_root() {
        return;
    }
    let script = "
import struct
CONTENT, ADD, OPEN_PERMISSION, ON_CHILD, CWD = 4, 1, 0x10000, 0x8000000, -100
group = libc.fanotify_init(CONTENT, 0)
libc.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
if group < 0 or libc.fanotify_mark(group, ADD, OPEN_PERMISSION | ON_CHILD, CWD, b'd') != 0:
    print(\"b'f' f\"); sys.stdout.flush(); os._exit(0)
names = []
def permit():
    while True:
        descriptor = struct.unpack('=IBBHQii', os.read(group, 24))[5]
        names.append(os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}')))
        os.write(group, struct.pack('=iI', descriptor, 1))
threading.Thread(target=permit, daemon=True).start()
print(content('d/f'), *names)";
    let place = Place::new();
    place.write("d/f", "f");
    let mut command = place.command();
    command.args(["run", "--quiet", "--timeout", "60s", "--"]).args(threaded(script));
    assert_eq!(printed_by(&mut command), "b'f' f\n");
}
