//! Chromium: started without a window, with a profile of its own.

use std::sync::{Arc, Mutex, PoisonError};

use chromiumoxide::Browser;
use chromiumoxide::browser::BrowserConfig;
use chromiumoxide::cdp::browser_protocol::target::{CreateBrowserContextParams, CreateTargetParams};
use futures::StreamExt as _;
use testbed::Scratch;
use tokio::task::JoinHandle;

use crate::look::Look;
use crate::tab::Tab;

/// What pages complained of, all tabs together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints(Arc<Mutex<Vec<String>>>);

impl Complaints {
    pub(crate) fn add(&self, complaint: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(complaint);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running Chromium.
pub(crate) struct Chromium {
    browser: Browser,
    handler: JoinHandle<()>,
    pub(crate) complaints: Complaints,
    // Removed when the browser has ended.
    _profile: Scratch,
}

impl Chromium {
    /// Starts it; installs it where it is missing.
    pub(crate) async fn launch() -> anyhow::Result<Self> {
        let program = tokio::task::spawn_blocking(testbed::chromium).await??;
        let profile = Scratch::new("chromium")?;
        let config = BrowserConfig::builder()
            .chrome_executable(program)
            .user_data_dir(profile.path())
            // Root has no sandbox, and what is looked at is our own.
            .no_sandbox()
            .viewport(None)
            .build()
            .map_err(anyhow::Error::msg)?;
        let (browser, mut events) = Browser::launch(config).await?;
        // Ends with the browser. A message that the driver does not know is none of ours.
        let handler = tokio::spawn(async move { while events.next().await.is_some() {} });
        Ok(Self { browser, handler, complaints: Complaints::default(), _profile: profile })
    }

    /// A tab in front of all others, of whoever has come in.
    pub(crate) async fn tab(&self, look: Look) -> anyhow::Result<Tab> {
        let page = self.browser.new_page("about:blank").await?;
        Tab::open(page, look, &self.complaints).await
    }

    /// A tab of somebody else: without cookies.
    pub(crate) async fn strangers_tab(&self, look: Look) -> anyhow::Result<Tab> {
        let context = self.browser.create_browser_context(CreateBrowserContextParams::default()).await?;
        let target = CreateTargetParams::builder().url("about:blank").browser_context_id(context).build();
        let page = self.browser.new_page(target.map_err(anyhow::Error::msg)?).await?;
        Tab::open(page, look, &self.complaints).await
    }

    /// Ends it.
    pub(crate) async fn close(mut self) -> anyhow::Result<()> {
        self.browser.close().await?;
        self.browser.wait().await?;
        self.handler.abort();
        Ok(())
    }
}
