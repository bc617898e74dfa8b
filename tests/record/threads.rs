//! Opens of a process with several threads, which the recorder makes for it: the process does not notice it.

use std::process::Command;

use crate::support::{Place, User, has};

/// Says all that a program can ask of what it has opened, in each way of [`WAYS`], while another thread lives.
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
print("full", errno.errorcode[ctypes.get_errno()], libc.open(b"missing", 0))
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

fn printed(mut command: Command) -> String {
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
        let alone = printed(alone);
        for (verb, program) in ways {
            let place = place_of(user);
            let mut command = place.command();
            command.args(verb.split(' ')).args(program);
            let recorded = printed(command);
            for (alone, recorded) in alone.lines().zip(recorded.lines()) {
                assert_eq!(alone, recorded, "{user:?} {verb} {program:?}");
            }
            assert_eq!(alone.lines().count(), recorded.lines().count(), "{verb} {program:?}");
        }
    }
}
