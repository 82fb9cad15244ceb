//! How somebody looks at a page.

/// A screen, its colours, and whether scripts run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// CSS pixels.
    pub(crate) width: u32,
    pub(crate) dark: bool,
    pub(crate) scripts: bool,
}

impl Look {
    /// A desk's screen, in daylight.
    pub(crate) const DESK: Self = Self { width: 1280, dark: false, scripts: true };

    /// All that pages are made for.
    pub(crate) const ALL: [Self; 4] = [
        Self::DESK,
        Self { dark: true, ..Self::DESK },
        Self { width: 360, ..Self::DESK },
        Self { width: 360, dark: true, ..Self::DESK },
    ];

    /// As a part of a file's name.
    pub(crate) fn name(self) -> String {
        format!("{}-{}", self.width, if self.dark { "dark" } else { "light" })
    }
}
