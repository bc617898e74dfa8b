//! Real commands on small trees, for the instruments that compare a recording with an outside truth.
//!
//! Each case makes its tree with `setup` and then runs `script`, both with bash in a place of their own.
//! Neighbours: `strace.rs` asks which paths were named, `overlay.rs` what was changed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Place, shown};

/// A command, and the tree that it works on.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// The programs that it needs beside a shell and coreutils.
    pub needs: &'static [&'static str],
    pub setup: &'static str,
    pub script: &'static str,
    /// Names that differ from run to run, as components with `*` and `?`: compared by these patterns.
    pub varying: &'static [&'static str],
    /// Names that only some runs use: malloc counts the processors when its arenas are all in use.
    pub sometimes: &'static [&'static str],
    /// Whether it is cheap enough for every `cargo test`.
    pub quick: bool,
}

pub const CASE: Case =
    Case { name: "", needs: &[], setup: "", script: "", varying: &[], sometimes: &[], quick: false };

pub const CASES: &[Case] = &[
    Case {
        name: "pipelines with redirections",
        setup: "seq 1 200 > in; mkdir d; ln -s d l",
        script: "cat < in | sort -rn | head -n 5 > out 2> err; wc -l in out >> d/log; cat nowhere 2>> err
                 (cd l/../d && cat ../in > copy); { read a; read b; } < in; echo $b | tee t1 t2 | cat > l/t3
                 : > empty; cat <<< here >| in; exec 3<> rw; echo x >&3; exec 3>&-; cat l/./t3 l//copy | tr 1 2 > z; true",
        quick: true,
        ..CASE
    },
    Case {
        name: "process substitution and subshells",
        setup: "seq 3 > a; seq 2 4 > b; mkdir sub",
        script: "diff <(sort a) <(sort b) > diff; (cd sub; (cd ..; cat a) > x; umask 077; : > y); pushd sub; cat ../b; popd
                 for f in *; do [ -f $f ] && [ ! -x $f ] && echo $f; done > list; test a -nt b; [ -e sub/none ]; true",
        quick: true,
        ..CASE
    },
    Case {
        name: "sed -i",
        setup: "seq 50 > a; seq 50 > b; ln -s a l",
        script: "sed -i s/1/one/ a; sed -i.bak 5d b; sed -i --follow-symlinks 1d l; sed -n '1w written' a; sed -i 2d l",
        varying: &["sed*"],
        quick: true,
        ..CASE
    },
    Case {
        name: "tar and gzip",
        needs: &["tar", "gzip"],
        setup: "mkdir -p t/{a,b}; seq 100 > t/a/x; ln t/a/x t/b/y; ln -s ../a/x t/b/l; mkfifo t/p; chmod 500 t/a/x",
        script: "tar cf t.tar t; tar czf t.tgz -C t a b; mkdir out; tar xpf t.tar -C out; tar xzf t.tgz -C out
                 tar xf t.tar --overwrite -C out; gzip -k t/a/x; zcat t/a/x.gz > z; rm -rf t; tar tf t.tar > list",
        quick: true,
        ..CASE
    },
    Case {
        name: "find, xargs and grep",
        needs: &["find", "xargs", "grep"],
        setup: "mkdir -p t/{a,b,c}/d; for i in 1 2 3; do echo word$i > t/a/d/$i; echo other > t/c/$i.tmp; done; ln -s nowhere t/dangling",
        script: "find t -name '*.tmp' -delete; find t -type f -print0 | xargs -0 grep -l word > found; grep -rn word2 t > lines
                 find -L t -type f -newer found; find t -type f -exec chmod 600 {} +; find t -depth -empty -execdir rmdir {} ';'",
        quick: true,
        ..CASE
    },
    Case {
        name: "coreutils",
        setup: "mkdir d e; seq 9 > a; seq 9 > d/f; ln -s d/f l; ln -s e m",
        script: "cp a b; ln b c; mv c d/; mv -T d g; mv g/f e/f2; rm l; mkdir -p p/q/r; rmdir p/q/r; touch -d @1 b; touch -h m
                 chmod -R u+x p; stat -c %s m/f2; readlink -f m/f2; truncate -s 100 b; truncate -s 3 a; install -D -m 755 a i/j/k
                 mkfifo pipe; mv -n b a; mv -b a b; cp --backup=numbered b i/j/k; ln -s e n; ln -sfn p n; dd if=b of=b bs=1 seek=2 count=1 conv=notrunc 2> said
                 split -l 2 e/f2 part.; sort -o e/f2 e/f2; shred -u part.aa; unlink part.ab; comm a b; tail -c 3 b; cmp a b; true",
        varying: &["Cu??????"],
        quick: true,
        ..CASE
    },
    Case {
        name: "cp -a, cp -al and rm -r",
        setup: "mkdir -p s/{a,b}/c; for i in 1 2 3; do seq $i > s/a/$i; ln s/a/$i s/b/c/$i; ln -s ../a/$i s/b/l$i; done; chmod 711 s/a",
        script: "cp -a s copy; cp -al s linked; cp -rL s/b followed; echo more >> linked/a/1; cp -u copy/a/2 s/a/2; rm -rf s/b copy; mv linked/a/2 linked/b",
        quick: true,
        ..CASE
    },
    Case {
        name: "moves of directories",
        needs: &["python3"],
        setup: "mkdir -p x/y/z w; seq 5 > x/y/z/f; seq 6 > x/g; mkdir x/empty; ln -s g x/l; echo w > w/f",
        script: "mv x v; mv v/y u; mv u/z/f u/f; mkdir x; mv w x/; mv v x/w/; python3 -c 'import os; os.rename(\"u\", \"x/u\"); os.rename(\"x/w\", \"t\"); os.mkdir(\"x/w\"); os.rename(\"t\", \"x/w\")'",
        ..CASE
    },
    Case {
        name: "awk",
        needs: &["awk"],
        setup: "seq 1 20 > in; seq 30 40 > more",
        script: r#"awk '{ s += $1; print > ("out" $1 % 3) } END { while ((getline line < "more") > 0) n++; print s, n > "sum"; if ((getline x < "absent") < 0) print "no" > "/dev/stderr" }' in
                   awk 'BEGIN { "cat in | wc -l" | getline n; print n | "cat > piped" }'"#,
        quick: true,
        ..CASE
    },
    Case {
        name: "patch and diff",
        needs: &["patch", "diff"],
        setup: "mkdir -p a/d b/d; seq 20 > a/f; seq 2 21 > b/f; echo gone > a/d/gone; echo new > b/d/new; diff -ruN a b > p || cp -r a c",
        script: "patch -d c -p1 < p; patch -b -R -d c -p1 < p; diff -r a c; patch --dry-run -d b -p1 < p; true",
        varying: &["pp??????", "pi??????", "po??????", "*.o??????", "pr??????"],
        quick: true,
        ..CASE
    },
    Case {
        name: "ed",
        needs: &["ed"],
        setup: "seq 10 > f",
        script: "printf '%s\\n' '2d' 'g/5/s//five/' '$a' 'last' . w 'w other' 'r !cat f' Q | ed -s f",
        varying: &["ed*"],
        quick: true,
        ..CASE
    },
    Case {
        name: "vim in batch mode",
        needs: &["vim"],
        setup: "seq 10 > f",
        script: "vim -u NONE -es -c '%s/1/one/' -c 'w' -c 'set backup' -c '1d' -c 'w' -c 'w other' -c 'qa!' f < /dev/null",
        varying: &["v*"],
        ..CASE
    },
    Case {
        name: "gcc",
        needs: &["gcc"],
        setup: "mkdir inc; echo 'int f(void);' > inc/f.h
                printf '#include <stdio.h>\\n#include \"f.h\"\\nint main(void) { printf(\"%%d\\\\n\", f()); return 0; }\\n' > main.c
                printf '#include \"f.h\"\\nint f(void) { return 3; }\\n' > f.c",
        script: "gcc -Iinc -Iabsent -o prog main.c f.c && ./prog > out; gcc -Iinc -MD -c f.c && ar rcs libf.a f.o && gcc -Iinc -pipe main.c -L. -lf -o two && ./two; strip two; gcc -Iinc -shared -fPIC -o libg.so f.c",
        varying: &["cc*", "st*"],
        ..CASE
    },
    Case {
        name: "make",
        needs: &["gcc", "make"],
        setup: "mkdir src; for i in 1 2 3; do echo \"int f$i(void) { return $i; }\" > src/f$i.c; done
                echo 'int f1(void); int main(void) { return f1() - 1; }' > src/main.c
                printf 'O = $(patsubst src/%%.c,obj/%%.o,$(wildcard src/*.c))\\n-include none.mk\\nprog: $(O)\\n\\t$(CC) -o $@ $^\\nobj/%%.o: src/%%.c | obj\\n\\t$(CC) -c -o $@ $<\\nobj:\\n\\tmkdir -p $@\\nclean:\\n\\trm -rf obj prog\\n' > Makefile",
        script: "make -s -j2 && ./prog && make -q; touch src/f2.c; make -s; make -s clean; make -s -j2 obj/f1.o",
        varying: &["cc*", "GMfifo*"],
        ..CASE
    },
    Case {
        name: "git",
        needs: &["git"],
        setup: "git init -q .; mkdir d; seq 10 > a; seq 5 > d/b; echo '*.o' > .gitignore; git add .; git commit -qm one; git branch side; echo x > x.o",
        script: "echo more >> a; git status --short; git diff; git add a; git commit -qm two; git checkout -q side; echo s > d/s; git add -A
                 git commit -qm three; git merge -q -m merged master; git mv d/b d/c; git rm -q a; git stash -q; git stash pop -q; git reset -q --hard
                 git clean -fdxq; git log -p > ../log.txt; mv ../log.txt .; git worktree add -q wt side~1; git -C wt status; git grep -n 5; git tag t; git archive t -o t.tar; git gc -q; rm -rf d; git checkout -q d",
        ..CASE
    },
    Case {
        name: "git clone and rebase",
        needs: &["git"],
        setup: "git init -q origin; cd origin; for i in 1 2 3; do echo $i > f$i; git add .; git commit -qm $i; done; git checkout -q -b other HEAD~2; echo o > o; git add .; git commit -qm o",
        script: "git clone -q origin copy; cd copy; git rebase -q origin/master; git cherry-pick -n origin/master~1 2>&1; git checkout -q -- .; git submodule -q status; git fetch -q; git pull -q --rebase; git bisect start HEAD HEAD~2 > /dev/null; git bisect reset 2> /dev/null",
        ..CASE
    },
    Case {
        name: "rsync",
        needs: &["rsync"],
        setup: "mkdir -p s/{a,b} d/gone; seq 100 > s/a/x; seq 9 > s/b/y; ln -s y s/b/l; ln s/a/x s/b/hard; seq 3 > d/gone/z; mkdir d/a; echo old > d/a/x",
        script: "rsync -a --delete s/ d; echo change >> s/a/x; rsync -aH --inplace s/ d; rsync -a --backup --backup-dir=old s/b/y d/b/; rm s/b/y; rsync -an --delete s/ d; rsync -a --delete --link-dest=../d s/ e",
        varying: &[".hard.*", ".?*.??????"],
        ..CASE
    },
    Case {
        name: "python",
        needs: &["python3"],
        setup: "mkdir -p pkg tmp t/a; echo 'value = 1' > pkg/mod.py; : > pkg/__init__.py; seq 10 > t/a/f; ln -s f t/a/l",
        script: r#"cat > run.py <<'END'
import glob, json, os, pathlib, shutil, sqlite3, subprocess, sys, tempfile, threading, zipfile
import pkg.mod
try:
    import absent
except ImportError:
    pass
shutil.copytree("t", "copy", symlinks=True)
shutil.move("copy/a", "moved")
with tempfile.TemporaryDirectory() as d:
    pathlib.Path(d, "x").write_text("x")
    shutil.copy2(os.path.join(d, "x"), "kept")
with tempfile.NamedTemporaryFile(dir="t") as f:
    f.write(b"gone")
def work(i):
    with open(f"thread{i}", "w") as f:
        f.write(str(i))
    os.replace(f"thread{i}", f"done{i}")
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
fd = os.open("t", os.O_RDONLY)
with os.fdopen(os.open("by_dir", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=fd), "w") as f:
    f.write("dir_fd")
os.link("by_dir", "by_dir2", src_dir_fd=fd, dst_dir_fd=fd)
os.symlink("by_dir", "sym", dir_fd=fd)
os.unlink("by_dir", dir_fd=fd)
os.truncate("kept", 0)
os.utime("kept", (1, 1))
json.dump(sorted(glob.glob("**", recursive=True)), open("list.json", "w"))
with zipfile.ZipFile("z.zip", "w") as z:
    z.write("list.json")
zipfile.ZipFile("z.zip").extractall("unzipped")
db = sqlite3.connect("db"); db.execute("create table t (a)"); db.execute("insert into t values (1)"); db.commit(); db.close()
print(subprocess.run(["cat", "kept"], cwd="t/..", capture_output=True))
shutil.rmtree("moved")
END
python3 run.py"#,
        varying: &["work/tmp*", "t/tmp*", "*.pyc.*", "tmp*/????????", "tmp*/tmp*"],
        ..CASE
    },
    Case {
        name: "node",
        needs: &["node"],
        setup: "mkdir -p lib node_modules/dep; echo 'module.exports = 3' > lib/m.js; echo '{\"main\":\"i.js\"}' > node_modules/dep/package.json; echo 'exports.x = 1' > node_modules/dep/i.js",
        script: r#"cat > run.js <<'END'
const fs = require("fs"), path = require("path"), cp = require("child_process");
require("./lib/m"); require("dep");
try { require("absent"); } catch {}
fs.mkdirSync("a/b/c", { recursive: true });
fs.writeFileSync("a/f", "one"); fs.appendFileSync("a/f", "two"); fs.copyFileSync("a/f", "a/b/g");
fs.renameSync("a/f", "a/h"); fs.symlinkSync("h", "a/l"); fs.cpSync("a", "copy", { recursive: true });
fs.rmSync("copy", { recursive: true }); fs.truncateSync("a/h", 2); fs.chmodSync("a/h", 0o600); fs.utimesSync("a/h", 1, 1);
console.log(fs.readdirSync("a", { recursive: true }), fs.existsSync("none"), fs.realpathSync("a/l"));
(async () => {
  await Promise.all([...Array(20).keys()].map((i) => fs.promises.writeFile("p" + i, "x")));
  await Promise.all([...Array(10).keys()].map((i) => fs.promises.unlink("p" + i)));
  const d = await fs.promises.mkdtemp("tmp/t-"); await fs.promises.rm(d, { recursive: true });
  cp.execFileSync("cp", ["p11", "p11copy"]);
})();
END
node run.js"#,
        varying: &["t-*"],
        ..CASE
    },
    Case {
        name: "perl",
        needs: &["perl"],
        setup: "seq 10 > f; mkdir d; echo 'package M; 1;' > d/M.pm",
        script: r#"perl -pi -e 's/1/one/' f; perl -i.orig -ne 'print unless /5/' f
                   perl -Id -MM -MFile::Copy -MFile::Path=make_path,remove_tree -MFile::Find -e 'copy("f", "g"); move("g", "h"); make_path("p/q/r"); remove_tree("p"); find(sub { print "$File::Find::name\n" }, "."); opendir(D, "d"); readdir D; open(F, "+>>", "app"); print F "x"; close F; symlink("h", "l"); rename("l", "m"); utime(1, 1, "h"); chmod(0600, "h"); unlink("m"); -e "none"; system("cat h > s"); `cat none 2>&1`'"#,
        varying: &["XX*"],
        ..CASE
    },
    Case {
        name: "npm install offline",
        needs: &["npm"],
        setup: "mkdir -p dep app; echo '{\"name\":\"dep\",\"version\":\"1.0.0\",\"bin\":{\"dep\":\"cli.js\"}}' > dep/package.json; printf '#!/usr/bin/env node\\nrequire(\"fs\").writeFileSync(\"made\", \"x\")\\n' > dep/cli.js
                echo '{\"name\":\"app\",\"version\":\"1.0.0\",\"scripts\":{\"build\":\"dep\"}}' > app/package.json",
        script: "(cd dep && npm pack --silent > /dev/null); cd app && npm install --offline --no-audit --no-fund --no-update-notifier --silent ../dep/dep-1.0.0.tgz && npm run --silent build; ls",
        varying: &[
            "*-debug-0.log",
            ".dep-????????",
            "????????-????-????-????-????????????",
            "tmp/??????",
        ],
        sometimes: &["/sys/devices/system/cpu/online"],
        ..CASE
    },
    Case {
        name: "cargo build offline",
        needs: &["cargo"],
        setup: "mkdir -p src; printf '[package]\\nname = \"tiny\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[workspace]\\n' > Cargo.toml; printf 'mod m;\\nfn main() { println!(\"{}\", m::f()); }\\n' > src/main.rs; echo 'pub fn f() -> u8 { 3 }' > src/m.rs",
        script: "cargo build --offline --quiet && target/debug/tiny > out && touch src/m.rs && cargo build --offline --quiet && cargo clean --quiet",
        varying: &["rustc*", "rmeta*", "tiny-*", "*.rcgu.*", "s-*", "*.tmp*", ".tmp*", "dep-graph*", "cc*", "work/target??????", "work-products*", "query-cache*"],
        ..CASE
    },
    Case {
        name: "sqlite3",
        needs: &["sqlite3"],
        setup: "sqlite3 db 'create table t (a, b); insert into t values (1, 2)'; printf '3,4\\n5,6\\n' > in.csv",
        script: "sqlite3 db 'insert into t values (7, 8); begin; update t set a = 9; rollback; vacuum'; sqlite3 db '.mode csv' '.import in.csv t' '.output dump.sql' .dump
                 sqlite3 new < dump.sql; sqlite3 new 'pragma journal_mode=wal; insert into t values (1, 1); select count(*) from t'; sqlite3 db \".backup copy\" 'pragma journal_mode=truncate; delete from t'",
        varying: &["etilqs_*"],
        ..CASE
    },
    Case {
        name: "links on the way",
        setup: "mkdir -p real/deep other; seq 3 > real/deep/f; ln -s real/deep l1; ln -s l1 l2; ln -s \"$PWD/l2\" l3; ln -s ../other real/up; echo o > other/o; ln -s loop loop; ln -s nowhere dangling",
        script: "cat l3/f l2/../up/o real/./deep/../deep//f; echo new > l3/new; cat loop; echo made > dangling; mv l2/new l1/renamed; ls -l --time-style=+ l3/ l3; cd l3; cat f ../../other/o; cd ../..; rm l2; cat l3/f; test -d l3; ln -T l1/f hard; mkdir l1/sub; rmdir real/deep/sub/; true",
        quick: true,
        ..CASE
    },
    Case {
        name: "a deleted working directory",
        setup: "mkdir -p a/b/c; seq 3 > a/f",
        script: "cd a/b/c; rm -r ../../b; ls; cat ../f; echo x > y; mkdir ../../b; cd /; cd \"$OLDPWD\"; cd \"$HOME/../work\"; echo back > back; true",
        quick: true,
        ..CASE
    },
    Case {
        name: "truncation and odd writes",
        needs: &["python3"],
        setup: "for f in a b c d e g h; do seq 500 > $f; done",
        script: r#"truncate -s 10 a; fallocate -p -o 0 -l 100 b; cp --reflink=auto c c2; python3 -c '
import contextlib, mmap, os
f = open("d", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0:3] = b"map"; m.flush(); f.close()
os.sendfile(os.open("e", os.O_WRONLY), os.open("g", os.O_RDONLY), 0, 50)
with contextlib.suppress(OSError): os.copy_file_range(os.open("g", os.O_RDONLY), os.open("h", os.O_RDWR), 20)
os.ftruncate(os.open("sparse", os.O_RDWR | os.O_CREAT), 1 << 20)
os.posix_fallocate(os.open("allocated", os.O_RDWR | os.O_CREAT), 0, 5000)
t = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(t, b"named late"); os.link(f"/proc/self/fd/{t}", "late", dst_dir_fd=os.open(".", os.O_RDONLY))
os.setxattr("a", "user.x", b"1"); os.removexattr("a", "user.x"); os.setxattr("a", "user.y", b"2")
'"#,
        ..CASE
    },
];

/// Those of `cases` whose programs are here; for the others the reason is printed.
pub fn possible(cases: impl Iterator<Item = &'static Case>) -> Vec<&'static Case> {
    let there = |case: &&Case| {
        let missing: Vec<_> = case.needs.iter().filter(|need| find(need).is_none()).collect();
        if !missing.is_empty() {
            println!("skipped: {}, which needs {missing:?}", case.name);
        }
        missing.is_empty()
    };
    cases.filter(there).collect()
}

/// Where a program lies in the path that the cases are run with.
pub fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&path()).map(|dir| dir.join(program)).find(|path| path.exists())
}

/// The search path: the system's, and the toolchain's own programs instead of the proxies that need
/// the developer's home.
fn path() -> OsString {
    let cargo = Path::new(env!("CARGO"));
    let mut path = OsString::from("/usr/local/bin:/usr/bin:/bin:");
    path.push(cargo.parent().unwrap_or(Path::new("/")));
    path
}

/// Gives a command of a case its environment, and nothing of the developer's own.
pub fn isolate(place: &Place, command: &mut Command) {
    command
        .current_dir(&place.work)
        .env_clear()
        .env("PATH", path())
        .env("HOME", &place.home)
        .env("XDG_CONFIG_HOME", &place.config)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("CARGO_HOME", place.home.join("cargo"))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_DATE", "1700000000 +0000")
        .env("GIT_COMMITTER_DATE", "1700000000 +0000")
        .env("PYTHONHASHSEED", "0")
        .env("npm_config_cache", place.home.join("npm"))
        .env("TMPDIR", place.work.join("tmp"))
        .stdin(Stdio::null());
}

/// Makes the tree of a case anew, and everything else that a run may have changed.
pub fn prepare(place: &Place, case: &Case) {
    for dir in [&place.work, &place.home] {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                fs::remove_dir_all(entry.path()).unwrap();
            } else {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    let git = "[user]\nname = A\nemail = a@example.org\n[init]\ndefaultBranch = master\n[gc]\nauto = 0\n[core]\nfsmonitor = false\n[maintenance]\nauto = false\n";
    fs::write(place.home.join(".gitconfig"), git).unwrap();
    fs::create_dir(place.work.join("tmp")).unwrap();
    let mut command = Command::new("bash");
    isolate(place, &mut command);
    let output = command.args(["-ec", case.setup]).output().unwrap();
    assert!(output.status.success(), "the setup of {}: {}", case.name, shown(&output));
}
