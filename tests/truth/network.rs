//! Ground truth of addresses: each that `strace -f` prints for connect, bind, sendto, sendmsg and sendmmsg is in the
//! manifest's `network`, and no other is.
//!
//! Real clients meet servers of the test's own, on loopback and at AF_UNIX paths: under strace, then recorded by
//! both mechanisms. Neighbours: `strace.rs` parses what strace prints, `cases.rs` isolates the clients.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::cases::{CASE, Case, isolate, possible, prepare};
use super::strace::{Call, can_trace, parse, unhex};
use crate::support::{Place, json, lines, shown};

/// The clients. `$HTTP`, `$PG` and `$UDP` are addresses, `$RUN` is a directory of sockets.
const CLIENTS: &[Case] = &[
    Case { name: "curl", needs: &["curl"], script: "curl -fsS http://$HTTP/file", ..CASE },
    Case { name: "git", needs: &["git"], script: "git clone -q http://$HTTP/repo.git c && cat c/file", ..CASE },
    Case {
        name: "pip",
        needs: &["pip3"],
        script: "pip3 -q --disable-pip-version-check --no-cache-dir install --target t --index-url http://$HTTP/simple tiny
                 cat t/tiny.py",
        ..CASE
    },
    Case {
        name: "npm",
        needs: &["npm", "node"],
        script: "npm install --silent --registry=http://$HTTP --no-audit --no-fund --no-update-notifier tiny
                 cat node_modules/tiny/index.js",
        ..CASE
    },
    Case {
        name: "psql",
        needs: &["psql"],
        // The servers hang up.
        script: "for at in \"host=${PG%:*} port=${PG#*:}\" host=$RUN host=$RUN/none; do psql \"$at user=u\" 2> /dev/null || true; done",
        ..CASE
    },
    Case {
        name: "node",
        needs: &["node"],
        script: r#"node -e '
const [host, port] = process.env.UDP.split(":");
require("http").get(`http://${process.env.HTTP}/file`, (answer) => answer.pipe(process.stdout));
require("net").connect(`${process.env.RUN}/stream`).on("close", () => {}).on("error", () => {}).resume();
const socket = require("dgram").createSocket("udp4");
socket.send("x", port, host, () => socket.close());'"#,
        ..CASE
    },
    Case {
        name: "asyncio",
        needs: &["python3"],
        script: r#"python3 -c '
import asyncio, os
async def main():
    host, port = os.environ["HTTP"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /file HTTP/1.0\r\n\r\n")
    print((await reader.read()).decode())
    host, port = os.environ["UDP"].split(":")
    loop = asyncio.get_running_loop()
    for options in {"remote_addr": (host, int(port))}, {"local_addr": ("127.0.0.1", 0)}:
        transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, **options)
        transport.sendto(b"x", None if "remote_addr" in options else (host, int(port)))
        transport.close()
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), "own")
    reader, writer = await asyncio.open_unix_connection("own")
    await reader.read()
asyncio.run(main())'"#,
        ..CASE
    },
    Case {
        name: "a static client",
        needs: &["gcc"],
        setup: r#"cat > client.c <<'END'
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
static struct sockaddr_in at(const char *name) {
    char *text = strdup(getenv(name)), *port = strchr(text, ':');
    *port = 0;
    return (struct sockaddr_in) { .sin_family = AF_INET, .sin_port = htons(atoi(port + 1)), .sin_addr.s_addr = inet_addr(text) };
}
int main(void) {
    struct sockaddr_in http = at("HTTP"), udp = at("UDP"), other = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x7f000001) };
    printf("%d\n", connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&http, sizeof http));
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    struct iovec part = { "x", 1 };
    struct mmsghdr many[3] = {{{ .msg_name = &udp, .msg_namelen = sizeof udp, .msg_iov = &part, .msg_iovlen = 1 }}};
    many[2] = many[1] = many[0];
    many[1].msg_hdr.msg_name = &other;
    printf("%d\n", sendmmsg(s, many, 3, 0));
    struct sockaddr off = { AF_UNSPEC };
    printf("%d %d\n", connect(s, (void *)&udp, sizeof udp), connect(s, &off, sizeof off));
}
END
gcc -static -o client client.c"#,
        script: "./client",
        ..CASE
    },
    Case {
        name: "UDP",
        needs: &["python3"],
        script: r#"python3 -c '
import os, socket
host, port = os.environ["UDP"].split(":")
s = socket.socket(type=socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 0))
s.sendto(b"x", (host, int(port)))
s.sendmsg([b"x"], [], 0, ("127.0.0.1", 9))
s.sendmsg([b"x"], [], socket.MSG_DONTWAIT, ("127.0.0.2", 9))
s.connect((host, int(port)))
s.sendmsg([b"x"])
t = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
try: t.sendmsg([b"x"], [], 0, ("::1", 9))
except OSError: pass'"#,
        ..CASE
    },
    Case {
        name: "AF_UNIX",
        needs: &["python3"],
        script: r#"python3 -c '
import os, socket
run = os.environ["RUN"]
a = socket.socket(socket.AF_UNIX); a.bind("own"); a.listen()
b = socket.socket(socket.AF_UNIX); b.connect("own")
b = socket.socket(socket.AF_UNIX); b.connect(run + "/stream")
c = socket.socket(socket.AF_UNIX); c.bind(b"\0own-abstract"); c.listen()
socket.socket(socket.AF_UNIX).connect(b"\0own-abstract")
d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); d.bind("own-datagrams")
d.sendto(b"x", run + "/datagrams")
d.sendmsg([b"x"], [], 0, "own-datagrams")
try: d.sendmsg([b"x"], [], 0, "absent")
except OSError: print("absent")
e = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); e.bind("")'"#,
        ..CASE
    },
];

/// The servers of a test, which are there until its process ends.
struct Servers {
    http: String,
    pg: String,
    udp: UdpSocket,
    run: PathBuf,
    _datagrams: UnixDatagram,
}

impl Servers {
    fn start(base: &Path) -> Servers {
        let [www, run] = ["www", "run"].map(|name| base.join(name));
        for directory in [&www, &run] {
            fs::create_dir(directory).unwrap();
        }
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (listener, silent) = (listen(), listen());
        let [http, pg] = [&listener, &silent].map(|listener| listener.local_addr().unwrap().to_string());
        publish(&www, &http);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let www = www.clone();
                // Some clients connect and say nothing yet.
                std::thread::spawn(move || serve(&www, stream));
            }
        });
        std::thread::spawn(move || silent.incoming().for_each(drop));
        for name in [".s.PGSQL.5432", "stream"] {
            let listener = UnixListener::bind(run.join(name)).unwrap();
            std::thread::spawn(move || listener.incoming().for_each(drop));
        }
        let datagrams = UnixDatagram::bind(run.join("datagrams")).unwrap();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Servers { http, pg, udp, run, _datagrams: datagrams }
    }

    fn run(&self, place: &Place, mut command: Command, script: &str) -> Output {
        isolate(place, &mut command);
        command.env("HTTP", &self.http).env("PG", &self.pg).env("RUN", &self.run);
        command.env("UDP", self.udp.local_addr().unwrap().to_string());
        command.args(["bash", "-ec", script]).output().unwrap()
    }

    /// An address as both sides have it; a port that the kernel chose for the client is called so.
    fn normal(&self, host: &str, port: u16) -> String {
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let udp = self.udp.local_addr().unwrap().to_string();
        let is_known = port < 1024 || [&self.http, &self.pg, &udp].contains(&&address);
        if is_known { address } else { format!("{host} ephemeral") }
    }
}

/// What the clients ask for: a file, a repository, and a package of each kind.
fn publish(www: &Path, http: &str) {
    let script = format!(
        r#"echo text > file
git init -q -b main w; cp file w; git -C w add file; git -C w -c user.name=a -c user.email=a@b commit -qm m
git clone -q --bare w repo.git; git -C repo.git update-server-info
mkdir -p package simple/tiny; echo 1 > package/index.js; echo '{{"name":"tiny","version":"1.0.0"}}' > package/package.json
tar -czf tiny-1.0.0.tgz package
echo '{{"name":"tiny","dist-tags":{{"latest":"1.0.0"}},"versions":{{"1.0.0":{{"name":"tiny","version":"1.0.0","dist":{{"tarball":"http://{http}/tiny-1.0.0.tgz"}}}}}}}}' > tiny
echo '<a href="/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>' > simple/tiny/index.html
command -v python3 > /dev/null || exit 0
python3 -c '
import zipfile
with zipfile.ZipFile("tiny-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tiny.py", "1\n")
    wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("tiny-1.0.dist-info/RECORD", "")'"#
    );
    let made = Command::new("bash").current_dir(www).args(["-ec", &script]).output().unwrap();
    assert!(made.status.success(), "{}", shown(&made));
}

/// Answers one request with a file.
fn serve(www: &Path, mut stream: std::net::TcpStream) {
    let mut request = String::new();
    for line in BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        request += &(line + "\n");
    }
    let name = request.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap().trim_matches('/');
    let path = www.join(name);
    let content = fs::read(if path.is_dir() { path.join("index.html") } else { path });
    let kind = if name.starts_with("simple") { "text/html" } else { "application/octet-stream" };
    let status = if content.is_ok() { "200 OK" } else { "404 Not Found" };
    let content = content.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    let _ = stream.write_all(&[head.as_bytes(), &content].concat());
}

/// The addresses of a call, as strace prints them.
fn printed(call: &Call, servers: &Servers, start: &Path) -> Vec<String> {
    let text = String::from_utf8(call.arguments.join(&b", "[..])).unwrap();
    let addresses = text.split("{sa_family=AF_").skip(1).map(|rest| {
        // Up to the end of the structure, whose strings are in hexadecimal.
        let rest = rest.split('}').next().unwrap();
        let (family, rest) = rest.split_once(", ").unwrap_or((rest, ""));
        let string = || unhex(rest.as_bytes(), "\"", "\"").map(|bytes| String::from_utf8(bytes).unwrap());
        let port = || rest.split_once("htons(").unwrap().1.split(')').next().unwrap().parse().unwrap();
        match family {
            "UNSPEC" => String::new(),
            "INET" | "INET6" => servers.normal(&string().unwrap(), port()),
            "UNIX" if rest.starts_with("sun_path=@") => format!("@{}", string().unwrap()),
            "UNIX" => string().map_or("@".to_owned(), |path| start.join(path).display().to_string()),
            family => family.to_lowercase(),
        }
    });
    addresses.filter(|address| !address.is_empty()).collect()
}

/// Every use of an address that strace has seen.
fn seen(trace: &str, servers: &Servers, start: &Path) -> BTreeSet<String> {
    let mut uses = BTreeSet::new();
    for call in parse(trace) {
        let operation = if call.name.starts_with("send") { "send" } else { call.name.as_str() };
        uses.extend(printed(&call, servers, start).iter().map(|address| format!("{operation} {address}")));
    }
    uses
}

/// The same of a manifest.
fn recorded(manifest: &serde_json::Value, servers: &Servers) -> BTreeSet<String> {
    let uses = manifest["network"].as_array().unwrap().iter().map(|used| {
        let text = |key: &str| used[key].as_str().unwrap_or_default();
        let address = match text("family") {
            "inet" | "inet6" => {
                servers.normal(text("address"), used["port"].as_u64().unwrap().try_into().unwrap())
            }
            "unix" if text("path").is_empty() => "@".to_owned(),
            "unix" => text("path").replacen('\0', "@", 1),
            family => family.to_owned(),
        };
        format!("{} {address}", text("operation"))
    });
    uses.collect()
}

/// Compares one client; what is wrong, a sentence each.
fn check(case: &Case) -> Vec<String> {
    let place = Place::new();
    let servers = Servers::start(place.base());
    let trace = place.base().join("trace");
    prepare(&place, case);
    let mut command = Command::new("strace");
    command
        .args(["-f", "-xx", "-s", "64", "-e", "trace=connect,bind,sendto,sendmsg,sendmmsg", "-o"])
        .arg(&trace);
    let traced = servers.run(&place, command, case.script);
    if !traced.status.success() {
        return vec![format!("it fails under strace: {}", shown(&traced))];
    }
    // The C library may ask the name service cache who the user is.
    let is_ours = |used: &String| !used.ends_with("/nscd/socket");
    let mut seen = seen(&fs::read_to_string(&trace).unwrap(), &servers, &place.work);
    seen.retain(is_ours);
    let mut wrong = Vec::new();
    for mechanism in ["auto", "stops"] {
        prepare(&place, case);
        let output = servers.run(&place, place.recorder(mechanism), case.script);
        if !output.status.success() || output.stdout != traced.stdout {
            wrong.push(format!(
                "it differs under {mechanism}: {}\nunder strace: {}",
                shown(&output),
                shown(&traced)
            ));
            continue;
        }
        let mut recorded = recorded(&json(&place.out.join("manifest.json")), &servers);
        recorded.retain(is_ours);
        let missing = seen.difference(&recorded).map(|used| format!("{mechanism}: {used} is not recorded"));
        let more = recorded.difference(&seen).map(|used| format!("{mechanism}: strace has not seen {used}"));
        wrong.extend(missing.chain(more));
    }
    println!("{}: {}", case.name, seen.into_iter().collect::<Vec<_>>().join(", "));
    wrong
}

#[test]
#[ignore = "slow: package managers and other clients"]
fn slow_strace_addresses_of_real_clients_are_recorded() {
    if !can_trace() {
        return;
    }
    let mut wrong = Vec::new();
    for case in possible(CLIENTS.iter()) {
        let found = check(case);
        if !found.is_empty() {
            wrong.push(format!("{}:{}", case.name, lines(&found)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
