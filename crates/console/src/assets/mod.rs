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

    fn content_type(self) -> &'static str {
        match self {
            Self::Style => "text/css; charset=utf-8",
            Self::Script | Self::Htmx => "text/javascript; charset=utf-8",
            Self::Icon => "image/svg+xml",
        }
    }

    fn base_name(self) -> &'static str {
        match self {
            Self::Style => "console.css",
            Self::Script => "console.js",
            Self::Htmx => "htmx.js",
            Self::Icon => "icon.svg",
        }
    }

    /// Returns the name with a hash of the content, like `console-0123456789ab.css`.
    fn file_name(self) -> &'static str {
        static FILE_NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
            let hash_name = |asset: Asset| {
                let hash = &blake3::hash(asset.text().as_bytes()).to_hex()[..12];
                let (stem, end) = asset.base_name().rsplit_once('.').unwrap_or((asset.base_name(), ""));
                format!("{stem}-{hash}.{end}")
            };
            Asset::ALL.into_iter().map(hash_name).collect()
        });
        let index = Self::ALL.iter().position(|asset| *asset == self).unwrap_or(0);
        &FILE_NAMES[index]
    }
}

/// Returns the path of a file.
pub(crate) fn path(site: &Site, asset: Asset) -> String {
    site.path(&format!("/assets/{}", asset.file_name()))
}

/// Builds the response with a file, or with status 404 if there is no file of this name.
pub(crate) fn build_response(file_name: &str) -> Response {
    match Asset::ALL.into_iter().find(|asset| asset.file_name() == file_name) {
        Some(asset) => {
            let headers = [
                (header::CONTENT_TYPE, asset.content_type()),
                (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
            ];
            (headers, asset.text()).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
