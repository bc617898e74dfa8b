//! The commands of a day: hand-written kinds, each with variations that follow from a seed and from what is in
//! the tree at that moment.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Random, has, is_root};

/// One command of the day.
#[derive(Debug, Clone)]
pub struct DayCommand {
    /// The name of its kind.
    pub kind: &'static str,
    /// What `sh -c` runs.
    pub script: String,
    /// Options of `run`.
    pub options: &'static [&'static str],
}

/// A kind of command.
struct Kind {
    name: &'static str,
    /// How many of it are among the commands that are drawn from.
    weight: usize,
    /// The programs that it needs beside a shell and coreutils.
    needs: &'static [&'static str],
    /// Options of `run`.
    options: &'static [&'static str],
    /// Whether it takes too long for every `cargo test`.
    slow: bool,
    /// A script; none if nothing in the tree is fit for it now.
    make: fn(&mut Generator) -> Option<String>,
}

const fn kind(name: &'static str, weight: usize, make: fn(&mut Generator) -> Option<String>) -> Kind {
    Kind { name, weight, needs: &[], options: &[], slow: false, make }
}

/// What the commands of a day are made by.
pub struct Generator {
    random: Random,
    work: PathBuf,
    supplies: PathBuf,
    kinds: Vec<Kind>,
    /// The kinds of the next commands, by index.
    bag: Vec<usize>,
    /// How many names and texts were made up.
    made: usize,
}

/// What the tree holds before the first command.
pub const SETUP: &str = r#"
git init -q .; git config gc.auto 0; git config user.name day; git config user.email day@example.org
mkdir -p app/core app/util tests docs/guide data c links web assets odd deep/a/b/c deep/d scratch
for i in 0 1 2 3 4 5 6 7; do
    for package in core util; do
        { printf 'VALUE = %s\n\n\ndef compute(x):\n    """Computes the %s of %s."""\n    return x * VALUE + %s\n' $i value $package $i
          seq -f "NAME_%g = $i" 1 $((i * 12)); } > app/$package/mod$i.py
    done
    { printf '# Page %s\n\n' $i; seq -f 'Line %g of the page, with some words in it.' 1 $((10 + i * 9)); } > docs/page$i.md
    { echo id,name,value; seq 1 $((40 + i * 30)) | sed "s/.*/&,name &,$i/"; } > data/table$i.csv
    printf 'int part%s(int x) { return x + %s; }\n' $i $i > c/part$i.c
    echo "leaf $i" > deep/a/b/c/leaf$i.txt; echo "note $i" > deep/d/note$i.txt
done
touch app/__init__.py app/core/__init__.py app/util/__init__.py tests/__init__.py
printf 'import unittest\nfrom app.core import mod1\nfrom app.util import mod2\n\n\nclass Cases(unittest.TestCase):\n    def test_value(self):\n        self.assertTrue(mod1.compute(2) is not None and mod2.compute(3) is not None)\n' > tests/test_core.py
printf 'int part1(int);\nint main(void) { return part1(1) == 99; }\n' > c/main.c
printf 'O = main.o part0.o part1.o part2.o\nprog: $(O)\n\t$(CC) -o $@ $^\n%%.o: %%.c\n\t$(CC) -c -o $@ $<\nclean:\n\trm -f *.o prog\n' > c/Makefile
echo 'one file under three names' > links/one; ln links/one links/two; ln links/one links/three
echo '{"name": "web", "version": "1.0.0"}' > web/package.json
printf 'exports.value = 1;\n' > web/index.js
touch scratch/.keep; head -c 2500000 /dev/urandom > assets/model.bin; seq 1 200000 > assets/log.txt
echo odd > 'odd/with space'; echo odd > "odd/it's"; echo odd > 'odd/-rf'; echo odd > 'odd/*'; echo odd > 'odd/$(x)'
echo odd > "$(printf 'odd/bad\377name')"; echo odd > "$(printf 'odd/new\nline')"; ln -s with\ space odd/link
ln -s ../docs/page1.md deep/page; ln -s core app/alias
printf '*.o\nprog\n__pycache__/\nnode_modules/\nbuild/\n*.log\n' > .gitignore
git add -A; git commit -qm start
"#;

/// Packages to install, made in a directory outside of the tree.
pub const SUPPLIES: &str = r#"
for version in 1.0.0 2.0.0; do
    mkdir -p package/lib
    echo "{\"name\": \"dep\", \"version\": \"$version\", \"main\": \"lib/main.js\"}" > package/package.json
    for i in 1 2 3 4 5 6; do echo "exports.part$i = '$version';" > package/lib/part$i.js; done
    echo "module.exports = '$version';" > package/lib/main.js; [ $version = 1.0.0 ] || rm package/lib/part6.js
    tar czf dep-$version.tgz package; rm -r package
done
python3 - <<'END' || true
import zipfile
for version in ("1.0", "2.0"):
    info = f"dep-{version}.dist-info"
    with zipfile.ZipFile(f"dep-{version}-py3-none-any.whl", "w") as wheel:
        files = {f"dep/part{i}.py": f"VERSION = '{version}'\n" * (i + 1) for i in range(6)} | {"dep/__init__.py": ""}
        files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: dep\nVersion: {version}\n"
        files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: day\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
        for name, text in files.items():
            wheel.writestr(name, text)
END
"#;

/// The kinds.
fn kinds() -> Vec<Kind> {
    let python = &["python3"][..];
    vec![
        kind("sed -i", 4, sed),
        Kind { needs: &["perl"], ..kind("perl -pi", 3, perl) },
        Kind { needs: &["ed"], ..kind("ed", 2, ed) },
        Kind { needs: python, ..kind("python edits", 4, python_edit) },
        Kind { needs: &["patch", "diff"], ..kind("patch", 2, patch) },
        kind("here document", 4, here_document),
        kind("editor that renames", 3, editor),
        Kind { needs: &["vim"], ..kind("vim", 1, vim) },
        kind("append", 3, append),
        kind("truncate", 2, truncate),
        kind("filter and replace", 2, filter),
        kind("move of files", 4, move_file),
        kind("move of a directory", 3, move_directory),
        kind("rename chain", 2, rename_chain),
        kind("copy", 3, copy),
        Kind { needs: &["rsync"], ..kind("rsync", 1, rsync) },
        kind("codemod", 3, codemod),
        kind("removal of files", 2, remove_files),
        kind("rm -rf", 3, remove_directory),
        kind("scaffold", 4, scaffold),
        Kind { needs: &["npm"], slow: true, ..kind("npm", 1, npm) },
        Kind { needs: python, slow: true, ..kind("pip", 1, pip) },
        Kind { needs: &["unzip"], ..kind("unpacked package", 1, unpack_wheel) },
        Kind { needs: &["gcc", "make"], ..kind("make", 2, make) },
        Kind { needs: &["gcc"], ..kind("gcc", 1, gcc) },
        Kind { needs: python, ..kind("compileall", 1, compile_all) },
        Kind { needs: python, ..kind("unittest", 2, unittest) },
        Kind { needs: &["tar", "gzip"], ..kind("tar", 2, tar) },
        Kind { needs: &["zip", "unzip"], ..kind("zip", 1, zip) },
        Kind { needs: &["gzip"], ..kind("gzip", 1, gzip) },
        Kind { needs: python, ..kind("server", 1, server) },
        Kind {
            needs: python,
            options: &["--survivors", "kill"],
            ..kind("server that is left", 1, server_that_is_left)
        },
        Kind { options: &["--survivors", "background"], ..kind("worker in the background", 1, worker) },
        kind("failure", 3, failure),
        kind("command that is killed", 1, killed),
        kind("process group that is killed", 1, killed_group),
        Kind { options: &["--survivors", "background"], ..kind("command that is killed alone", 1, killed) },
        kind("reading", 6, reading),
        kind("chmod", 3, chmod),
        kind("touch", 2, touch),
        kind("symlinks", 3, symlinks),
        kind("hard links", 4, hard_links),
        kind("odd names", 2, odd_names),
        kind("change of type", 2, change_of_type),
        kind("large file", 2, large_file),
        Kind { needs: &["sqlite3"], ..kind("sqlite3", 2, sqlite) },
        Kind { needs: &["setfattr"], ..kind("xattrs", 1, xattrs) },
        kind("owners", 1, owners),
        kind("nodes", 1, nodes),
        kind("at once", 2, at_once),
        kind("private files", 1, private),
        Kind { needs: &["git"], ..kind("git", 4, git) },
        Kind { needs: &["node"], slow: true, ..kind("node", 1, node) },
        kind("elsewhere", 1, elsewhere),
    ]
}

impl Generator {
    pub fn new(seed: u64, work: &Path, supplies: &Path, slow: bool) -> Generator {
        let mut missing: BTreeSet<&str> = BTreeSet::new();
        let mut kinds = kinds();
        kinds.retain(|kind| {
            let lacks: Vec<_> =
                kind.needs.iter().filter(|program| missing.contains(*program) || !has(program)).collect();
            missing.extend(lacks.iter().copied());
            lacks.is_empty() && (slow || !kind.slow)
        });
        let random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Generator {
            random,
            work: work.to_owned(),
            supplies: supplies.to_owned(),
            kinds,
            bag: Vec::new(),
            made: 0,
        }
    }

    /// The next command, for the tree as it is now.
    pub fn next(&mut self) -> DayCommand {
        loop {
            let Some(index) = self.bag.pop() else {
                self.bag = (0..self.kinds.len())
                    .flat_map(|index| std::iter::repeat_n(index, self.kinds[index].weight))
                    .collect();
                for at in (1..self.bag.len()).rev() {
                    let other = self.random.below(at + 1);
                    self.bag.swap(at, other);
                }
                continue;
            };
            let Kind { name, options, make, .. } = self.kinds[index];
            if let Some(script) = make(self) {
                return DayCommand { kind: name, script, options };
            }
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit)
    }

    /// One of several.
    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len())].clone()) }
    }

    /// A number that no other command has.
    fn number(&mut self) -> usize {
        self.made += 1;
        self.made
    }

    /// The files and directories whose names need no quotes, relative to the tree, without what other kinds care for.
    fn entries(&self, is_one: impl Fn(&str, &fs::Metadata) -> bool) -> Vec<String> {
        const NOT: [&str; 9] =
            [".git", "node_modules", "vendor", "__pycache__", "links", "odd", "assets", "nodes", "c"];
        let is_plain = |name: &str| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte))
                && !name.starts_with('-')
        };
        let walk = walkdir::WalkDir::new(&self.work).min_depth(1).sort_by_file_name().into_iter();
        let entries =
            walk.filter_entry(|entry| entry.file_name().to_str().is_some_and(|name| !NOT.contains(&name)));
        entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.path().strip_prefix(&self.work).ok()?.to_str()?.to_owned();
                (is_plain(&name) && is_one(&name, &entry.metadata().ok()?)).then_some(name)
            })
            .collect()
    }

    /// The text files that anyone may edit.
    pub fn texts(&self) -> Vec<String> {
        const SUFFIXES: [&str; 6] = [".py", ".md", ".csv", ".txt", ".js", ".rst"];
        self.entries(|name, stat| {
            stat.is_file() && stat.len() > 0 && SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        })
    }

    fn text(&mut self) -> Option<String> {
        let texts = self.texts();
        self.pick(&texts)
    }

    /// Several different text files.
    fn some_texts(&mut self, count: usize) -> Option<Vec<String>> {
        let mut texts = self.texts();
        if texts.len() < count {
            return None;
        }
        Some((0..count).map(|_| texts.swap_remove(self.random.below(texts.len()))).collect())
    }

    /// A directory.
    fn directory(&mut self) -> Option<String> {
        let directories = self.entries(|name, stat| stat.is_dir() && name != "web");
        self.pick(&directories)
    }

    /// A directory that the day can do without: there are many other files.
    fn spare_directory(&mut self) -> Option<String> {
        let texts = self.texts();
        let spared = texts.len().saturating_sub(25);
        let within = |name: &str| texts.iter().filter(|text| text.starts_with(&format!("{name}/"))).count();
        let directories = self.entries(|name, stat| {
            stat.is_dir()
                && !["web", "app", "tests", "docs", "scratch"].contains(&name)
                && within(name) < spared.min(40)
        });
        self.pick(&directories)
    }

    /// Whether the tree holds so much that nothing more should be made.
    fn is_full(&self) -> bool {
        self.entries(|_, _| true).len() > 400
    }

    /// The number of the command as a text, and a text file.
    fn edit(&mut self) -> Option<(usize, String)> {
        Some((self.number(), self.text()?))
    }
}

fn sed(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(match day.below(5) {
        0 => format!("sed -i '1s/^/{n} /' {file}"),
        1 => {
            let other = day.text()?;
            format!("sed -i.bak 's/e/E{n}/' {file} {other}")
        }
        2 => format!("sed -i '$a added {n}' {file}"),
        3 => format!("sed -i '1d;2i in {n}' {file}"),
        _ => format!("cd {} && sed -i 's/$/ {n}/' *.py *.md *.txt", directory_of(&file)),
    })
}

/// The directory of a file in the tree.
fn directory_of(file: &str) -> &str {
    file.rsplit_once('/').map_or(".", |(directory, _)| directory)
}

fn perl(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(match day.below(4) {
        0 => format!("perl -pi -e 's/(\\d+)/$1 + {n}/e' {file}"),
        1 => format!("perl -i.orig -ne 'print unless $. == 2' {file}"),
        2 => format!("perl -0777 -pi -e 's/\\n\\n+/\\n# {n}\\n/' {file}"),
        _ => format!("perl -e 'open F, \"+<\", shift; seek F, 0, 2; print F \"perl {n}\\n\"' {file}"),
    })
}

fn ed(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(match day.below(2) {
        0 => format!("printf '%s\\n' 1i 'inserted {n}' . w q | ed -s {file}"),
        _ => format!("printf '%s\\n' 'g/e/s//e{n}/' 'w' 'w {file}.copy' q | ed -s {file}"),
    })
}

fn python_edit(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    let body = match day.below(7) {
        0 => format!("p = pathlib.Path('{file}'); p.write_text(p.read_text() + 'written {n}\\n')"),
        1 => format!("f = open('{file}', 'r+'); t = f.read(); f.seek(0); f.write('{n} ' + t); f.truncate()"),
        2 => format!("open('{file}.new', 'w').write('replaced {n}\\n'); os.replace('{file}.new', '{file}')"),
        3 => format!(
            "f = open('{file}', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:1] = b'{}'; m.flush()",
            n % 10
        ),
        4 => format!("shutil.copy2('{file}', '{file}.bak'); os.truncate('{file}', {})", n % 9),
        5 => format!(
            "t = tempfile.NamedTemporaryFile('w', dir='.', delete=False); t.write('temporary {n}\\n'); t.close(); os.rename(t.name, '{file}')"
        ),
        _ => format!(
            "[print(n, line, end='') for n, line in enumerate(fileinput.input('{file}', inplace=True), {n})]"
        ),
    };
    Some(format!("python3 - <<'END'\nimport fileinput, mmap, os, pathlib, shutil, tempfile\n{body}\nEND"))
}

fn patch(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    let flags = day.pick(&["-s", "-s -b", "-s --no-backup-if-mismatch"])?;
    Some(format!("sed '1s/^/patched {n} /;3d' {file} | diff -u {file} - | patch {flags} {file}"))
}

fn here_document(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(match day.below(3) {
        0 => format!("cat > {file} <<'EOF'\nall new {n}\n$HOME stays as it is\nEOF"),
        1 => {
            let directory = day.directory()?;
            format!("cat > {directory}/made{n}.txt <<EOF\nmade {n}\n$(seq 1 {})\nEOF", n % 50)
        }
        _ => format!("cat >> {file} <<EOF\nmore {n}\nEOF\necho \"# $(wc -l < {file})\" >> {file}"),
    })
}

fn editor(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    let swap = format!("{}/.swap{n}", directory_of(&file));
    Some(match day.below(4) {
        0 => format!("cp -p {file} {swap}; echo 'edited {n}' >> {swap}; mv {swap} {file}"),
        // As Emacs does it.
        1 => format!(
            "mv -f {file} {file}~; cp {file}~ {swap}; echo 'edited {n}' >> {swap}; cat {swap} > {file}; rm {swap}"
        ),
        // Links the new file to the name after the old one is gone.
        2 => format!("echo 'edited {n}' > {swap}; rm {file}; ln {swap} {file}; rm {swap}"),
        _ => format!(
            "{{ echo 'edited {n}'; cat {file}; }} > {swap} && chmod 640 {swap} && mv -f {swap} {file}"
        ),
    })
}

fn vim(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    let set = day.pick(&["set backup", "set nobackup", "set backupcopy=no", "set backupcopy=yes backup"])?;
    Some(format!("vim -u NONE -es -c '{set}' -c '1s/^/vim {n} /' -c wq {file} < /dev/null"))
}

fn append(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let files = day.some_texts(2)?;
    Some(match day.below(3) {
        0 => format!("echo 'appended {n}' >> {}", files[0]),
        1 => format!("date | tee -a {} > /dev/null; echo {n} >> {}", files[0], files[1]),
        _ => format!("seq {n} {} >> {}; seq 3 >> {}", n + 30, files[0], files[1]),
    })
}

fn truncate(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(match day.below(4) {
        0 => format!(": > {file}; echo {n} > {file}"),
        1 => format!("truncate -s {} {file}", n % 40),
        2 => format!("truncate -s +{n} {file}"),
        _ => format!("printf {n} | dd of={file} bs=1 seek=3 conv=notrunc status=none"),
    })
}

fn filter(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(match day.below(4) {
        0 => format!("sort -r -o {file} {file}; echo {n} >> {file}"),
        1 => format!("awk '{{ print NR + {n}, $0 }}' {file} > {file}.tmp && mv {file}.tmp {file}"),
        2 => format!("tac {file} > {file}.tac; tr e {} < {file}.tac > {file}", n % 10),
        _ => format!(
            "split -l 7 {file} {}/part{n}. && cat {}/part{n}.* > {file}.joined",
            directory_of(&file),
            directory_of(&file)
        ),
    })
}

fn move_file(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let files = day.some_texts(2)?;
    let directory = day.directory()?;
    let name = format!("moved{n}.txt");
    Some(match day.below(5) {
        0 => format!("mv {} {}/{name}", files[0], directory_of(&files[0])),
        1 => format!("mv {} {directory}/{name}", files[0]),
        2 => format!("mv -f {} {}", files[0], files[1]),
        3 => format!("mkdir -p {directory}/new{n} && mv {} {} {directory}/new{n}/", files[0], files[1]),
        _ => format!("mv -b {} {}", files[0], files[1]),
    })
}

fn move_directory(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let directory = day.spare_directory()?;
    let above = directory_of(&directory);
    Some(match day.below(4) {
        0 => format!("mv {directory} {above}/moved{n}"),
        1 => {
            format!("mv {directory} {above}/moved{n}; mkdir {directory}; echo {n} > {directory}/instead.txt")
        }
        2 => format!("mkdir -p box{n}/in && mv {directory} box{n}/in/"),
        _ => format!("mv {directory} {above}/moved{n}; ln -s moved{n} {directory}"),
    })
}

fn rename_chain(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let files = day.some_texts(3)?;
    Some(match day.below(3) {
        0 => format!("mv {0} scratch/swap{n}; mv {1} {0}; mv scratch/swap{n} {1}", files[0], files[1]),
        1 => format!(
            "mv {0} scratch/swap{n}; mv {1} {0}; mv {2} {1}; mv scratch/swap{n} {2}",
            files[0], files[1], files[2]
        ),
        _ => {
            let directory = day.directory()?;
            format!(
                "cd {directory} && for f in *.txt *.md; do [ -f \"$f\" ] && mv \"$f\" \"${{f%.*}}.rst\"; done; true"
            )
        }
    })
}

fn copy(day: &mut Generator) -> Option<String> {
    if day.is_full() {
        return None;
    }
    let n = day.number();
    let directory = day.spare_directory()?;
    let files = day.some_texts(2)?;
    Some(match day.below(4) {
        0 => format!("cp -r {directory} scratch/copy{n}"),
        1 => format!("cp -a {directory} scratch/copy{n}; echo {n} > scratch/copy{n}/added.txt"),
        2 => format!("cp {} {}", files[0], files[1]),
        _ => format!(
            "cp --backup=numbered {} {}; install -D -m 750 {} scratch/installed{n}/bin.txt",
            files[0], files[1], files[0]
        ),
    })
}

fn rsync(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let directory = day.spare_directory()?;
    let flags = day.pick(&["-a", "-a --delete", "-a --inplace", "-a --backup"])?;
    Some(format!(
        "mkdir -p scratch/mirror && rsync {flags} {directory}/ scratch/mirror/ && echo {n} > scratch/mirror/synced.txt"
    ))
}

fn codemod(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(match day.below(5) {
        0 => format!("grep -rl VALUE app | grep '\\.py$' | xargs sed -i 's/VALUE/VALUE_{n}/g'"),
        1 => format!(
            "find app docs deep -name '*.py' -exec sh -c 'printf \"%s\\n\" \"# codemod {n}\" \"$(cat \"$1\")\" > \"$1\"' sh {{}} ';'"
        ),
        2 => format!(
            "find . -name '*.csv' -not -path './.git/*' -print0 | xargs -0 -P 3 -n 2 sed -i 's/name/name{n}/'"
        ),
        3 => format!(
            "for f in docs/*.md; do [ -f \"$f\" ] || continue; {{ echo '<!-- {n} -->'; cat \"$f\"; }} > \"$f.new\" && mv \"$f.new\" \"$f\"; done"
        ),
        _ => format!(
            "for f in $(find app -name 'mod*.py'); do mv $f $(dirname $f)/m{n}_$(basename $f); done; find app -name '*.py' | xargs sed -i 's/mod/m{n}/'"
        ),
    })
}

fn remove_files(day: &mut Generator) -> Option<String> {
    if day.texts().len() < 40 {
        return None;
    }
    let files = day.some_texts(3)?;
    Some(match day.below(4) {
        0 => format!("rm {}", files[0]),
        1 => format!("rm -f {} {} {}", files[0], files[1], files[2]),
        2 => "find . -not -path './.git/*' \\( -name '*.bak' -o -name '*~' -o -name '*.orig' \\) -delete"
            .to_owned(),
        _ => format!("unlink {}; find scratch -type f -name '*.txt' | head -n 3 | xargs -r rm", files[0]),
    })
}

fn remove_directory(day: &mut Generator) -> Option<String> {
    let directory = day.spare_directory()?;
    let n = day.number();
    Some(match day.below(4) {
        0 => format!("rm -rf {directory}"),
        1 => format!("rm -rf {directory}/*"),
        2 => format!("find {directory} -depth -delete"),
        _ => format!("rm -rf {directory}; mkdir {directory}; echo 'again {n}' > {directory}/again.txt"),
    })
}

fn scaffold(day: &mut Generator) -> Option<String> {
    if day.is_full() {
        return None;
    }
    let n = day.number();
    let directory = day.directory()?;
    let extension = day.pick(&["py", "md", "txt", "csv"])?;
    Some(format!(
        "mkdir -p {directory}/new{n}/sub && for i in 1 2 3 4; do seq -f \"VALUE = %g # {n}\" 1 $((i * 9)) > {directory}/new{n}/sub/file$i.{extension}; done; echo {n} > {directory}/new{n}/read.md"
    ))
}

fn npm(day: &mut Generator) -> Option<String> {
    let supplies = day.supplies.display().to_string();
    let version = day.pick(&["1.0.0", "2.0.0"])?;
    let flags = "--offline --no-audit --no-fund --no-update-notifier --silent";
    let exists = day.work.join("web/node_modules").exists();
    Some(match day.below(4) {
        0 if exists => format!("cd web && npm uninstall {flags} dep"),
        1 if exists => "rm -rf web/node_modules".to_owned(),
        _ => format!("cd web && npm install {flags} {supplies}/dep-{version}.tgz"),
    })
}

fn pip(day: &mut Generator) -> Option<String> {
    let supplies = day.supplies.display().to_string();
    let version = day.pick(&["1.0", "2.0"])?;
    Some(match day.below(4) {
        0 => "python3 -m venv --without-pip .venv && .venv/bin/python -c 'import sys; print(sys.prefix)'"
            .to_owned(),
        1 if day.work.join(".venv").exists() => "rm -rf .venv".to_owned(),
        _ => format!(
            "python3 -m pip install --quiet --no-index --no-deps --no-cache-dir --disable-pip-version-check --upgrade --target vendor {supplies}/dep-{version}-py3-none-any.whl"
        ),
    })
}

fn unpack_wheel(day: &mut Generator) -> Option<String> {
    let supplies = day.supplies.display().to_string();
    let version = day.pick(&["1.0", "2.0"])?;
    Some(format!(
        "rm -rf vendor/dep*; mkdir -p vendor && unzip -qo {supplies}/dep-{version}-py3-none-any.whl -d vendor"
    ))
}

fn make(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(match day.below(4) {
        0 => "make -s -C c clean".to_owned(),
        1 => format!("echo 'int unused{n};' >> c/part1.c; make -s -C c"),
        2 => "touch c/main.c; make -s -j3 -C c && c/prog".to_owned(),
        _ => format!(
            "printf 'int part2(int x) {{ return x + {n}; }}\\n' > c/part2.c; make -C c > c/build.log 2>&1"
        ),
    })
}

fn gcc(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(match day.below(2) {
        0 => format!(
            "mkdir -p build && gcc -DN={n} -O1 -shared -fPIC -o build/lib.so c/part*.c && strip build/lib.so"
        ),
        _ => format!(
            "cd c && gcc -c part3.c part4.c && ar rcs libpart.a part3.o part4.o && echo 'syntax error {n}' | gcc -x c -o broken -"
        ),
    })
}

fn compile_all(day: &mut Generator) -> Option<String> {
    Some(match day.below(2) {
        0 => "python3 -m compileall -q app tests".to_owned(),
        _ => "python3 -m compileall -q -f app; find . -name '*.pyc' -path '*util*' -delete".to_owned(),
    })
}

fn unittest(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(match day.below(3) {
        0 => "python3 -m unittest -q tests.test_core".to_owned(),
        1 => format!(
            "python3 -m unittest discover -s tests -t . > tests/result{n}.txt 2>&1; tail -n 1 tests/result{n}.txt"
        ),
        _ => format!(
            "echo '# {n}' >> tests/test_core.py; python3 -m unittest tests.test_core 2> tests/last.log"
        ),
    })
}

fn tar(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let directory = day.spare_directory()?;
    Some(match day.below(3) {
        0 => format!(
            "tar czf scratch/archive{n}.tgz {directory} && rm -rf {directory} && tar xzf scratch/archive{n}.tgz"
        ),
        1 => format!("tar cf - {directory} | (mkdir -p scratch/tar{n} && tar xf - -C scratch/tar{n})"),
        _ => format!(
            "tar cf scratch/archive{n}.tar {directory} --remove-files; tar xpf scratch/archive{n}.tar; rm scratch/archive{n}.tar"
        ),
    })
}

fn zip(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let directory = day.spare_directory()?;
    Some(match day.below(2) {
        0 => format!(
            "zip -qr scratch/archive{n}.zip {directory}; unzip -qo scratch/archive{n}.zip -d scratch/zip{n}"
        ),
        _ => format!(
            "zip -qrm scratch/archive{n}.zip {directory}; unzip -qo scratch/archive{n}.zip; zip -qd scratch/archive{n}.zip '*.md'"
        ),
    })
}

fn gzip(day: &mut Generator) -> Option<String> {
    let packed = day.entries(|name, stat| stat.is_file() && name.ends_with(".gz"));
    if day.below(2) == 0
        && let Some(file) = day.pick(&packed)
    {
        return Some(format!("gunzip -f {file}"));
    }
    let file = day.text()?;
    Some(format!("gzip -f {file}"))
}

fn server(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(format!(
        "mkfifo .said; python3 -u -m http.server --bind 127.0.0.1 0 > .said 2> scratch/web{n}.log & server=$!
         read line < .said; port=$(echo \"$line\" | sed 's/.* port \\([0-9]*\\).*/\\1/')
         python3 -c \"import urllib.request as u; open('scratch/page{n}.html', 'wb').write(u.urlopen('http://127.0.0.1:$port/docs/').read())\"
         kill $server; wait $server; rm .said; true"
    ))
}

fn server_that_is_left(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let file = day.text()?;
    Some(format!(
        "echo 'served {n}' >> {file}; mkfifo .said; python3 -u -m http.server --bind 127.0.0.1 0 > .said 2> scratch/web{n}.log &
         read line < .said; rm .said; echo \"$line\" | cut -c 1-20 > scratch/line{n}.txt"
    ))
}

/// It works on when the command has ended.
fn worker(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let files = day.some_texts(2)?;
    Some(format!(
        "(i=0; while [ $i -lt 40 ]; do i=$((i + 1)); echo $i {n} >> scratch/worker{n}.txt; done; sed -i 's/^/late {n} /' {}; mv scratch/worker{n}.txt scratch/done{n}.txt) &
         echo 'soon {n}' >> {}",
        files[0], files[1]
    ))
}

fn failure(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let files = day.some_texts(2)?;
    Some(match day.below(6) {
        0 => format!("echo 'failed {n}' >> {}; exit 1", files[0]),
        1 => format!("no-such-command-{n} {}", files[0]),
        2 => format!(
            "set -e; mv {} scratch/half{n}.txt; mv no-such-file {}; rm {}",
            files[0], files[0], files[1]
        ),
        3 => format!("cp {} scratch/before{n}.txt && false && rm {}; kill -TERM $$", files[0], files[0]),
        4 => format!("rm {} no-such-file {}/", files[0], files[1]),
        _ => format!("set -u; echo {n} > {}; echo $nothing > {}", files[0], files[1]),
    })
}

/// What is killed in the middle is the process that the user waits for.
fn killed(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let file = day.text()?;
    let directory = day.spare_directory()?;
    Some(match day.below(2) {
        0 => format!("echo 'before the kill {n}' >> {file}; kill -9 $PPID; exec sleep 1000"),
        _ => format!(
            "mv {directory} scratch/killed{n}; sed -i '1d' {file}; mkdir scratch/at{n}; kill -9 $PPID; exec sleep 1000"
        ),
    })
}

fn killed_group(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let file = day.text()?;
    Some(format!(
        "echo 'before the kill {n}' > {file}; (echo {n} > scratch/group{n}.txt); kill -9 0; exec sleep 1000"
    ))
}

fn reading(day: &mut Generator) -> Option<String> {
    let file = day.text()?;
    let n = day.number();
    let commands = [
        "ls -la".to_owned(),
        format!("cat {file}"),
        "git status --short".to_owned(),
        "grep -rn VALUE app | head".to_owned(),
        format!("find . -name '*{}*'", n % 10),
        format!("wc -l {file}; stat {file}; file {file}"),
        "git log --stat | head -n 20; git diff | wc".to_owned(),
        "du -s .; test -e nothing || echo none".to_owned(),
        format!("echo x > scratch/gone{n}; rm scratch/gone{n}; mkdir scratch/gone{n}; rmdir scratch/gone{n}"),
        format!("cp -p {file} scratch/same{n}; mv scratch/same{n} {file}"),
        "true".to_owned(),
    ];
    day.pick(&commands)
}

fn chmod(day: &mut Generator) -> Option<String> {
    let file = day.text()?;
    let directory = day.spare_directory()?;
    let mode = day.pick(&["600", "640", "755", "444", "4755", "664"])?;
    Some(match day.below(4) {
        0 => format!("chmod {mode} {file}"),
        1 => format!("chmod -R go-rwx {directory}"),
        2 => format!("chmod -R u+x {directory}; chmod 1777 {directory}"),
        _ => format!("chmod -R a-w {directory}"),
    })
}

fn touch(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let file = day.text()?;
    Some(match day.below(4) {
        0 => format!("touch {file}"),
        1 => {
            format!("touch -d '2001-02-03 04:05:{:02}.678901234' {file}; touch scratch/empty{n}.txt", n % 60)
        }
        2 => format!("echo 'at the time {n}' >> {file}; touch -d @{} {file}", 1_000_000_000 + n),
        _ => format!("touch -r {file} scratch/as{n}.txt; touch -m -d yesterday {file}"),
    })
}

fn symlinks(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let file = day.text()?;
    let links = day.entries(|_, stat| stat.is_symlink());
    let link = day.pick(&links);
    Some(match (day.below(6), link) {
        (0, Some(link)) => format!("ln -sfn target{n} {link}"),
        (1, Some(link)) => format!("rm {link}; echo 'no symlink {n}' > {link}"),
        (2, Some(link)) => format!("mv {link} scratch/link{n}"),
        (3, _) => format!("ln -s \"$PWD\"/{file} scratch/link{n}; echo 'through {n}' >> scratch/link{n}"),
        (4, _) => format!("ln -s {} scratch/directory{n}; ls scratch/directory{n}/", directory_of(&file)),
        _ => format!(
            "ln -s \"$PWD\"/{file} scratch/link{n}; sed -i --follow-symlinks '1s/^/via {n} /' scratch/link{n}; ln -s nowhere scratch/dangling{n}"
        ),
    })
}

fn hard_links(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let mode = day.pick(&["600", "644", "755"])?;
    Some(match day.below(9) {
        0 => format!("echo {n} >> links/one"),
        1 => format!("printf 'through two {n}\\n' > links/two"),
        2 => format!("chmod {mode} links/three"),
        3 => format!("ln links/one links/name{n}; echo {n} >> links/name{n}"),
        4 => format!("ln -f links/one links/two; ln -f links/one links/three; echo {n} >> links/three"),
        5 => format!("cp -al links scratch/links{n}; echo {n} >> scratch/links{n}/one"),
        6 => format!(
            "rm -rf links; mkdir links; echo 'again {n}' > links/one; ln links/one links/two; ln links/one links/three"
        ),
        7 => format!("mv links/one links/moved{n}; ln links/moved{n} links/one"),
        _ => format!("python3 -c 'f = open(\"links/two\", \"r+\"); f.write(\"in place {n}\")'"),
    })
}

fn odd_names(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(match day.below(6) {
        0 => format!("for f in odd/*; do [ -f \"$f\" ] && echo {n} >> \"$f\"; done"),
        1 => format!(
            "mkdir \"$(printf 'odd/d\\351j\\340 {n}')\"; echo {n} > \"$(printf 'odd/d\\351j\\340 {n}/\\\\n\\t')\""
        ),
        2 => format!("cd odd && mv -- \"$(ls | head -n 1)\" 'moved {n} '; echo {n} > ./--help"),
        3 => format!(
            "echo {n} > odd/$(printf '%0250d' {n}); ln -s \"$(printf 'a\\nb\\377')\" \"odd/link {n}\""
        ),
        4 => format!("rm -rf odd/*; echo {n} > 'odd/again; rm -rf \"$x\"'; echo {n} > odd/..."),
        _ => format!("cp -r odd \"scratch/odd {n}\"; find odd -type f -print0 | xargs -0 sed -i 's/$/ {n}/'"),
    })
}

fn change_of_type(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let file = day.text()?;
    let directory = day.spare_directory()?;
    Some(match day.below(4) {
        0 => format!("rm {file}; mkdir {file}; echo {n} > {file}/inside.txt"),
        1 => format!("rm -r {directory}; echo 'no directory {n}' > {directory}"),
        2 => format!("rm {file}; ln -s elsewhere{n} {file}"),
        _ => format!("mv {directory} scratch/type{n}; ln -s scratch/type{n} {directory}"),
    })
}

fn large_file(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(match day.below(7) {
        0 => format!("echo {n} | dd of=assets/model.bin bs=1 seek=1000000 conv=notrunc status=none"),
        1 => "head -c 1500000 /dev/urandom > assets/model.bin".to_owned(),
        2 => format!("seq {n} 50000 >> assets/log.txt"),
        3 => "tail -n 100000 assets/log.txt > assets/log.new && mv assets/log.new assets/log.txt".to_owned(),
        4 => format!(
            "truncate -s 30M assets/sparse{n}; echo {n} | dd of=assets/sparse{n} bs=1 seek=20000000 conv=notrunc status=none; rm -f assets/sparse{}",
            n / 2
        ),
        5 => "cp assets/model.bin assets/model.old; truncate -s 900000 assets/model.bin".to_owned(),
        _ => "rm -f assets/model.old; gzip -kf assets/log.txt".to_owned(),
    })
}

fn sqlite(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let statements = match day.below(5) {
        0 => format!("insert into t select value, 'row {n}' from generate_series(1, 400);"),
        1 => format!("update t set b = 'updated {n}' where a % 3 = 0;"),
        2 => format!("delete from t where a % 4 = {}; vacuum;", n % 4),
        3 => format!("pragma journal_mode = wal; insert into t values ({n}, 'wal');"),
        _ => format!("begin; update t set a = {n}; rollback; insert into t values ({n}, 'kept');"),
    };
    Some(format!("sqlite3 data/app.db \"create table if not exists t (a, b); {statements}\" > /dev/null"))
}

fn xattrs(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(match day.below(2) {
        0 => format!("setfattr -n user.day -v {n} {file}"),
        _ => format!(
            "setfattr -n user.other -v {n} {file}; echo {n} >> {file}; cp -a {file} scratch/attributes{n}.txt"
        ),
    })
}

fn owners(day: &mut Generator) -> Option<String> {
    if !is_root() {
        return None;
    }
    let directory = day.spare_directory()?;
    let file = day.text()?;
    Some(match day.below(2) {
        0 => format!("chown 65534:65534 {file}"),
        _ => format!("chgrp -R 65534 {directory}"),
    })
}

fn nodes(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(match day.below(3) {
        0 => format!("mkdir -p nodes; mkfifo nodes/pipe{n}"),
        1 => format!(
            "mkdir -p nodes; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"nodes/socket{n}\")'"
        ),
        _ => "rm -rf nodes".to_owned(),
    })
}

fn at_once(day: &mut Generator) -> Option<String> {
    let n = day.number();
    let files = day.some_texts(4)?;
    Some(match day.below(2) {
        0 => format!(
            "for f in {}; do (echo 'at once {n}' >> $f; cp $f $f.{n}; mv $f.{n} $f) & done; wait",
            files.join(" ")
        ),
        _ => format!("printf '%s\\n' {} | xargs -P 4 -n 1 sed -i '1s/^/parallel {n} /'", files.join(" ")),
    })
}

fn private(day: &mut Generator) -> Option<String> {
    let n = day.number();
    Some(format!(
        "umask 077; mkdir scratch/private{n}; echo secret > scratch/private{n}/key.txt; (umask 0; echo {n} > scratch/private{n}/open.txt)"
    ))
}

fn git(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    let directory = day.directory()?;
    Some(match day.below(9) {
        0 | 1 => format!("git add -A && git commit -qm 'commit {n}'"),
        // Not of all: it would part names of one file, which changes nothing that an undo gives back.
        2 => "git stash push -q -- app docs deep && git stash pop -q".to_owned(),
        3 => format!("git checkout -q HEAD -- {directory}"),
        4 => format!("git mv -k {file} scratch/by-git{n}.txt"),
        5 => format!("git rm -qf --ignore-unmatch {file}"),
        6 => format!(
            "echo {n} >> {file}; git diff {file} > scratch/p{n}.patch; git apply -R scratch/p{n}.patch; git add {file}"
        ),
        7 => "git clean -fdq scratch".to_owned(),
        _ => format!(
            "git checkout -q -b branch{n}; echo {n} > scratch/branch{n}.txt; git add -A scratch; git commit -qm side; git checkout -q -; git merge -q branch{n}"
        ),
    })
}

fn node(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(format!(
        "node -e 'const fs = require(\"fs\"); fs.appendFileSync(\"{file}\", \"node {n}\\n\"); fs.mkdirSync(\"scratch/node{n}/a\", {{ recursive: true }}); fs.cpSync(\"deep\", \"scratch/node{n}/a/deep\", {{ recursive: true }})'"
    ))
}

/// What is changed outside of the tree is undone with it.
fn elsewhere(day: &mut Generator) -> Option<String> {
    let (n, file) = day.edit()?;
    Some(match day.below(2) {
        0 => format!("echo 'set {n}' >> ~/.dayrc; echo 'and here {n}' >> {file}"),
        _ => format!("mkdir -p ~/data/{n}; mv {file} ~/data/{n}/"),
    })
}
