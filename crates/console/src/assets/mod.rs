//! Static files of the pages. Their names contain a hash of the content, so browsers can cache them for ever.

use std::sync::LazyLock;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::access::Site;

/// A static file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asset {
    Style,
    Script,
    /// htmx 2.0.11, unchanged; its license is in htmx.LICENSE.
    Htmx,
    Icon,
}

impl Asset {
    const ALL: [Self; 4] = [Self::Style, Self::Script, Self::Htmx, Self::Icon];

    fn text(self) -> &'static str {
        match self {
            Self::Style => include_str!("console.css"),
            Self::Script => include_str!("console.js"),
            Self::Htmx => include_str!("htmx.min.js"),
            Self::Icon => include_str!("icon.svg"),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Style => "text/css; charset=utf-8",
            Self::Script | Self::Htmx => "text/javascript; charset=utf-8",
            Self::Icon => "image/svg+xml",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Style => "console.css",
            Self::Script => "console.js",
            Self::Htmx => "htmx.js",
            Self::Icon => "icon.svg",
        }
    }

    /// Returns a name like `console-0123456789ab.css`.
    fn file(self) -> &'static str {
        static FILES: LazyLock<Vec<String>> = LazyLock::new(|| {
            let named = |asset: Asset| {
                let hash = &blake3::hash(asset.text().as_bytes()).to_hex()[..12];
                let (stem, end) = asset.name().rsplit_once('.').unwrap_or((asset.name(), ""));
                format!("{stem}-{hash}.{end}")
            };
            Asset::ALL.into_iter().map(named).collect()
        });
        let index = Self::ALL.iter().position(|asset| *asset == self).unwrap_or(0);
        &FILES[index]
    }
}

/// Returns the path of a file.
pub(crate) fn path(site: &Site, asset: Asset) -> String {
    site.path(&format!("/assets/{}", asset.file()))
}

/// Serves a file by its name.
pub(crate) fn serve(file: &str) -> Response {
    match Asset::ALL.into_iter().find(|asset| asset.file() == file) {
        Some(asset) => {
            let headers = [
                (header::CONTENT_TYPE, asset.kind()),
                (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
            ];
            (headers, asset.text()).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
