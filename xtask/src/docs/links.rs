//! Do the built book's links lead somewhere? Files and the places in them; other sites are nobody's to check here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Looks at all pages of the book; returns how many links there are.
pub(super) fn check(book: &Path) -> anyhow::Result<usize> {
    let mut pages = BTreeMap::new();
    collect(book, &mut pages)?;
    let places: BTreeMap<&Path, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path.as_path(), attributes(text, "id").collect())).collect();
    let (mut count, mut broken) = (0, Vec::new());
    for (path, text) in &pages {
        // Its links are those of the book's root, wherever it is shown.
        if path.ends_with("404.html") {
            continue;
        }
        for link in attributes(text, "href").chain(attributes(text, "src")).filter(|link| is_local(link)) {
            count += 1;
            if !leads_somewhere(path, link, &places) {
                let from = path.strip_prefix(book).unwrap_or(path);
                broken.push(format!("{}: {link}", from.display()));
            }
        }
    }
    anyhow::ensure!(broken.is_empty(), "links that lead nowhere:\n  {}", broken.join("\n  "));
    anyhow::ensure!(count > 100, "only {count} links were found in {}", book.display());
    Ok(count)
}

fn collect(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = std::fs::read_to_string(&path)?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

/// The values of an attribute.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let opening = format!(" {name}=\"");
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, behind) = rest.split_once(opening.as_str())?;
        let (value, after) = behind.split_once('"')?;
        rest = after;
        Some(value)
    })
}

fn is_local(link: &str) -> bool {
    !link.is_empty()
        && !["http:", "https:", "mailto:", "data:", "javascript:"].iter().any(|s| link.starts_with(s))
}

fn leads_somewhere(from: &Path, link: &str, places: &BTreeMap<&Path, BTreeSet<&str>>) -> bool {
    let (file, place) = link.split_once('#').map_or((link, None), |(file, place)| (file, Some(place)));
    let target = match file {
        "" => from.to_path_buf(),
        _ => plain(&from.with_file_name("").join(file)),
    };
    match (places.get(target.as_path()), place) {
        (Some(ids), Some(place)) => place.is_empty() || ids.contains(place),
        (Some(_), None) => true,
        (None, _) => target.exists(),
    }
}

/// Without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_looked_up_from_their_own_page() {
        let (page, other) = (Path::new("/book/how-to/a.html"), Path::new("/book/b.html"));
        let places = BTreeMap::from([(page, BTreeSet::from(["here"])), (other, BTreeSet::from(["there"]))]);
        for link in ["#here", "a.html", "../b.html#there", "../b.html"] {
            assert!(leads_somewhere(page, link, &places), "{link}");
        }
        for link in ["#there", "b.html", "../b.html#here", "../c.html"] {
            assert!(!leads_somewhere(page, link, &places), "{link}");
        }
    }

    #[test]
    fn attributes_are_found() {
        let text = "<a href=\"x.html\">x</a><img src=\"y.svg\"><a class=\"z\" href=\"#i\">";
        assert_eq!(attributes(text, "href").collect::<Vec<_>>(), ["x.html", "#i"]);
        assert!(!is_local("https://example.org/"));
    }
}
