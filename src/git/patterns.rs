//! Attributes and exclude rules, per directory, read once and kept.
//!
//! As gitattributes(5) and gitignore(5) have it: the files in the working tree are never followed when they
//! are symlinks, what is nearer to a path outweighs what is farther, `info/attributes` outweighs all
//! attributes and `info/exclude` none of the rules in the working tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gix::attrs::search::{MetadataCollection, Outcome};
use gix::bstr::ByteSlice;
use gix::glob::pattern::Case;
use gix::glob::search::pattern::List;
use gix::ignore::search::Ignore as Excludes;

use super::convert::{ATTRIBUTES, Conversion, Driver, Eol};
use super::error::Error;
use super::files;

/// Pattern files are read up to this size: each line of one takes a hundred bytes, and is compared with each
/// path. Git stops at 100 MiB of attributes.
const LIMIT: u64 = 1 << 20;

/// What holds for the entries of one directory.
#[derive(Clone)]
pub(super) struct Patterns {
    attributes: Arc<Vec<Arc<gix::attrs::Search>>>,
    excludes: Arc<Vec<Arc<List<Excludes>>>>,
    /// Whether the directory itself is excluded, and so all that it holds.
    excluded: bool,
}

/// What holds for a whole working tree, and the buffers of the matcher.
pub(super) struct Global {
    case: Case,
    parse: Excludes,
    base: Patterns,
    everywhere: gix::attrs::Search,
    info: Option<gix::attrs::Search>,
    /// Whether `everywhere` or `info` have more than the built-in macro.
    has_attributes: bool,
    /// Whether all that holds was read.
    is_whole: bool,
    collection: MetadataCollection,
    outcome: Outcome,
}

/// Fetches the content of a pattern file that is in the index and not in the working tree; of those that a
/// sparse checkout left out only, if the second argument is true.
pub(super) type FromIndex<'a> = dyn FnMut(&[u8], bool) -> Option<Vec<u8>> + 'a;

/// Where the patterns of a working tree come from, besides the tree.
pub(super) struct Sources {
    /// From the weakest to the strongest.
    pub(super) attributes: Vec<PathBuf>,
    /// `core.excludesFile` or its default.
    pub(super) excludes: Option<PathBuf>,
    /// The `info` directory.
    pub(super) info: PathBuf,
    /// Whether `core.ignoreCase` is set.
    pub(super) ignore_case: bool,
}

impl Global {
    /// Reads what holds for a whole working tree.
    pub(super) fn read(sources: &Sources) -> Global {
        let parse = Excludes { support_precious: false };
        let mut global = Global {
            case: if sources.ignore_case { Case::Fold } else { Case::Sensitive },
            parse,
            base: Patterns { attributes: Arc::default(), excludes: Arc::default(), excluded: false },
            everywhere: gix::attrs::Search::default(),
            info: None,
            has_attributes: false,
            is_whole: true,
            collection: MetadataCollection::default(),
            outcome: Outcome::default(),
        };
        let builtin = b"[attr]binary -diff -merge -text".to_vec();
        let mut is_whole = true;
        let mut read = |file: &Path| {
            files::read_followed(file, LIMIT).unwrap_or_else(|_| {
                is_whole = false;
                None
            })
        };
        let others: Vec<_> = sources.attributes.iter().filter_map(|file| read(file)).collect();
        for content in std::iter::once(builtin).chain(others) {
            global.has_attributes |= global.everywhere.num_pattern_lists() > 0;
            let _ = global.everywhere.add_patterns_buffer(
                &content,
                PathBuf::from("[global]"),
                None,
                &mut global.collection,
                true,
            );
        }
        if let Some(content) = read(&sources.info.join("attributes")) {
            let mut info = gix::attrs::Search::default();
            let _ = info.add_patterns_buffer(&content, "[info]".into(), None, &mut global.collection, true);
            global.info = Some(info);
            global.has_attributes = true;
        }
        let exclude = sources.info.join("exclude");
        let lists = sources.excludes.iter().chain(std::iter::once(&exclude)).filter_map(|file| {
            let content = read(file)?;
            List::from_bytes(&content, file.clone(), None, parse).ok()
        });
        global.base.excludes = Arc::new(lists.map(Arc::new).collect());
        global.is_whole = is_whole;
        global.outcome.initialize_with_selection(&global.collection, ATTRIBUTES);
        global
    }

    /// Whether all that holds was read: no file with patterns is too large.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The patterns of the directory at `relative` (empty: the root), from those of its parent; none where
    /// a file with them is too large.
    pub(super) fn directory(
        &mut self,
        parent: Option<&Patterns>,
        root: &Path,
        relative: &[u8],
        indexed: &mut FromIndex<'_>,
    ) -> Option<Patterns> {
        let mut patterns = parent.unwrap_or(&self.base).clone();
        if !relative.is_empty() && !patterns.excluded {
            patterns.excluded = self.is_excluded(&patterns, relative, true);
        }
        let mut content = |name: &str, skipped: bool| {
            let mut file = relative.to_vec();
            if !file.is_empty() {
                file.push(b'/');
            }
            file.extend_from_slice(name.as_bytes());
            let Ok(source) = gix::path::from_byte_slice(&file) else { return Ok(None) };
            let found = root.join(source);
            let content = files::read(&found, LIMIT)?.or_else(|| {
                // Something else in its place hides the one in the index.
                found.symlink_metadata().is_err().then(|| indexed(&file, skipped))?
            });
            match content {
                Some(content) if content.len() as u64 > LIMIT => Err(Error::TooLarge),
                content => Ok(content.map(|content| (content, source.to_owned()))),
            }
        };
        if let Some((content, source)) = content(".gitattributes", false).ok()? {
            let mut search = gix::attrs::Search::default();
            let is_root = relative.is_empty();
            let base = Some(Path::new(""));
            if search.add_patterns_buffer(&content, source, base, &mut self.collection, is_root).is_ok() {
                Arc::make_mut(&mut patterns.attributes).push(Arc::new(search));
            }
        }
        // Git does not look for rules below an excluded directory.
        if !patterns.excluded
            && let Some((content, source)) = content(".gitignore", true).ok()?
            && let Ok(list) = List::from_bytes(&content, source, Some(Path::new("")), self.parse)
        {
            Arc::make_mut(&mut patterns.excludes).push(Arc::new(list));
        }
        Some(patterns)
    }

    /// Whether the exclude rules match `relative`, an entry of the directory of `patterns`.
    pub(super) fn is_excluded(&self, patterns: &Patterns, relative: &[u8], is_dir: bool) -> bool {
        if patterns.excluded {
            return true;
        }
        let path = relative.as_bstr();
        let name = path.rfind_byte(b'/').map(|slash| slash + 1);
        let last = patterns.excludes.iter().rev().find_map(|list| {
            gix::ignore::search::pattern_matching_relative_path(list, path, name, Some(is_dir), self.case)
        });
        last.is_some_and(|found| !found.pattern.is_negative())
    }

    /// The conversion of the file at `relative`, an entry of the directory of `patterns`.
    pub(super) fn conversion(
        &mut self,
        patterns: &Patterns,
        relative: &[u8],
        default: Eol,
        driver: impl Fn(&gix::bstr::BStr) -> Option<Driver>,
    ) -> Conversion {
        if !self.has_attributes && patterns.attributes.is_empty() {
            return Conversion::default(default);
        }
        self.outcome.initialize(&self.collection);
        let from_tree = patterns.attributes.iter().rev().map(Arc::as_ref);
        for search in self.info.iter().chain(from_tree).chain(std::iter::once(&self.everywhere)) {
            if self.outcome.is_done() {
                break;
            }
            search.pattern_matching_relative_path(
                relative.as_bstr(),
                self.case,
                Some(false),
                &mut self.outcome,
            );
        }
        let mut states = [gix::attrs::StateRef::Unspecified; 6];
        for (state, found) in states.iter_mut().zip(self.outcome.iter_selected()) {
            *state = found.assignment.state;
        }
        Conversion::new(default, states, driver)
    }
}
