//! A tab: what somebody does in it with mouse and keys, and what is seen in it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use chromiumoxide::Page;
use chromiumoxide::cdp::browser_protocol::emulation::{
    MediaFeature, SetDeviceMetricsOverrideParams, SetEmulatedMediaParams, SetScriptExecutionDisabledParams,
    SetTimezoneOverrideParams,
};
use chromiumoxide::cdp::browser_protocol::input::{
    DispatchKeyEventParams, DispatchKeyEventType, DispatchMouseEventParams, DispatchMouseEventType,
    InsertTextParams, MouseButton,
};
use chromiumoxide::cdp::browser_protocol::log::{EventEntryAdded, LogEntryLevel};
use chromiumoxide::cdp::browser_protocol::network::{
    EventLoadingFailed, EventLoadingFinished, EventRequestWillBeSent,
};
use chromiumoxide::cdp::browser_protocol::page::CaptureScreenshotFormat;
use chromiumoxide::cdp::js_protocol::runtime::{
    ConsoleApiCalledType, EvaluateParams, EventConsoleApiCalled, EventExceptionThrown,
};
use chromiumoxide::page::ScreenshotParams;
use futures::StreamExt as _;
use serde::de::DeserializeOwned;
use serde_json::json;
use testbed::eventually;

use crate::browser::Complaints;
use crate::look::Look;

/// What a tab has asked of the network.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// URLs, in the order in which they were asked for.
    pub(crate) asked: Vec<String>,
    /// How many requests are over, well or badly.
    pub(crate) over: usize,
}

/// A tab.
pub(crate) struct Tab {
    page: Page,
    traffic: Arc<Mutex<Traffic>>,
}

impl Tab {
    /// Makes a new page look as it should, and listens to what it complains of.
    pub(crate) async fn open(page: Page, look: Look, complaints: &Complaints) -> anyhow::Result<Self> {
        let tab = Self { page, traffic: Arc::default() };
        tab.listen(complaints).await?;
        tab.look(look).await?;
        tab.to_front().await?;
        Ok(tab)
    }

    /// Another screen, other colours, scripts or none; those from the next page on.
    pub(crate) async fn look(&self, look: Look) -> anyhow::Result<()> {
        self.resize(look.width, if look.width < 600 { 760 } else { 800 }).await?;
        let feature =
            |name: &str, value: &str| MediaFeature { name: name.to_owned(), value: value.to_owned() };
        let colours = feature("prefers-color-scheme", if look.dark { "dark" } else { "light" });
        let media = SetEmulatedMediaParams::builder()
            .features([colours, feature("prefers-reduced-motion", "reduce")]);
        self.page.execute(media.build()).await?;
        self.page.execute(SetTimezoneOverrideParams::new("UTC")).await?;
        self.page.execute(SetScriptExecutionDisabledParams::new(!look.scripts)).await?;
        Ok(())
    }

    /// Another size of its window, in CSS pixels.
    pub(crate) async fn resize(&self, width: u32, height: u32) -> anyhow::Result<()> {
        self.page.execute(SetDeviceMetricsOverrideParams::new(width, height, 1.0, false)).await?;
        Ok(())
    }

    async fn listen(&self, complaints: &Complaints) -> anyhow::Result<()> {
        let mut thrown = self.page.event_listener::<EventExceptionThrown>().await?;
        let mut called = self.page.event_listener::<EventConsoleApiCalled>().await?;
        let mut logged = self.page.event_listener::<EventEntryAdded>().await?;
        let mut asked = self.page.event_listener::<EventRequestWillBeSent>().await?;
        let mut finished = self.page.event_listener::<EventLoadingFinished>().await?;
        let mut failed = self.page.event_listener::<EventLoadingFailed>().await?;
        let told = complaints.clone();
        tokio::spawn(async move {
            while let Some(event) = thrown.next().await {
                told.add(format!("exception: {}", json!(event.exception_details)));
            }
        });
        let told = complaints.clone();
        tokio::spawn(async move {
            while let Some(event) = called.next().await {
                if matches!(
                    event.r#type,
                    ConsoleApiCalledType::Error
                        | ConsoleApiCalledType::Warning
                        | ConsoleApiCalledType::Assert
                ) {
                    told.add(format!("console: {}", json!(event.args)));
                }
            }
        });
        let told = complaints.clone();
        tokio::spawn(async move {
            while let Some(event) = logged.next().await {
                let entry = &event.entry;
                if matches!(entry.level, LogEntryLevel::Error | LogEntryLevel::Warning) {
                    told.add(format!(
                        "{}: {} ({})",
                        entry.source.as_ref(),
                        entry.text,
                        entry.url.as_deref().unwrap_or("no URL")
                    ));
                }
            }
        });
        let traffic = Arc::clone(&self.traffic);
        tokio::spawn(async move {
            while let Some(event) = asked.next().await {
                lock(&traffic).asked.push(event.request.url.clone());
            }
        });
        let traffic = Arc::clone(&self.traffic);
        tokio::spawn(async move {
            let mut over =
                futures::stream::select(finished.by_ref().map(|_| ()), failed.by_ref().map(|_| ()));
            while over.next().await.is_some() {
                lock(&traffic).over += 1;
            }
        });
        Ok(())
    }

    /// URLs that were asked for so far, and how many of these requests are over.
    pub(crate) fn traffic(&self) -> (Vec<String>, usize) {
        let traffic = lock(&self.traffic);
        (traffic.asked.clone(), traffic.over)
    }

    /// In front of the other tabs, which are hidden then.
    pub(crate) async fn to_front(&self) -> anyhow::Result<()> {
        self.page.bring_to_front().await?;
        Ok(())
    }

    /// Opens a URL, as from the address bar.
    pub(crate) async fn go(&self, url: &str) -> anyhow::Result<()> {
        self.page.goto(url).await.with_context(|| format!("cannot open {url}"))?;
        self.until("document.readyState === 'complete'").await
    }

    /// What an expression comes to in the page.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, expression: &str) -> anyhow::Result<T> {
        let evaluate =
            EvaluateParams::builder().expression(expression).return_by_value(true).await_promise(true);
        let answer = self.page.execute(evaluate.build().map_err(anyhow::Error::msg)?).await?.result;
        if let Some(thrown) = answer.exception_details {
            anyhow::bail!("{expression}: {}", json!(thrown));
        }
        Ok(serde_json::from_value(answer.result.value.unwrap_or_default())?)
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) -> anyhow::Result<()> {
        let seen = eventually(expression, || async {
            // A page that is just being left answers nothing.
            match self.ask::<bool>(expression).await {
                Ok(true) => Ok(()),
                Ok(false) => Err("not so".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        });
        match seen.await {
            Ok(()) => Ok(()),
            Err(error) => {
                Err(error.context(format!("on {}: {}", self.url().await?, self.text("body").await?)))
            }
        }
    }

    /// Waits until an element says something.
    pub(crate) async fn until_says(&self, selector: &str, words: &str) -> anyhow::Result<()> {
        self.until(&format!(
            "(document.querySelector({})?.textContent ?? '').includes({})",
            json!(selector),
            json!(words)
        ))
        .await
    }

    /// The text of an element; empty where there is none.
    pub(crate) async fn text(&self, selector: &str) -> anyhow::Result<String> {
        self.ask(&format!("document.querySelector({})?.innerText ?? ''", json!(selector))).await
    }

    /// Where it is.
    pub(crate) async fn url(&self) -> anyhow::Result<String> {
        self.ask("location.href").await
    }

    /// How many elements are like that.
    pub(crate) async fn count(&self, selector: &str) -> anyhow::Result<u64> {
        self.ask(&format!("document.querySelectorAll({}).length", json!(selector))).await
    }

    /// The middle of an element that somebody could click on now.
    async fn middle(&self, selector: &str) -> anyhow::Result<(f64, f64)> {
        let place: Option<(f64, f64)> = self
            .ask(&format!(
                "(() => {{
                    const element = document.querySelector({});
                    if (!element) return null;
                    element.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                    const box = element.getClientRects()[0];
                    if (!box) return null;
                    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                    const hit = document.elementFromPoint(x, y);
                    return hit && (element.contains(hit) || hit.contains(element)) ? [x, y] : null;
                }})()",
                json!(selector)
            ))
            .await?;
        place.with_context(|| format!("nothing to click on: {selector}"))
    }

    /// Clicks on an element.
    pub(crate) async fn click(&self, selector: &str) -> anyhow::Result<()> {
        let (x, y) =
            eventually(selector, || async { self.middle(selector).await.map_err(|error| error.to_string()) })
                .await?;
        let mouse = |kind| {
            DispatchMouseEventParams::builder()
                .r#type(kind)
                .x(x)
                .y(y)
                .button(MouseButton::Left)
                .click_count(1)
        };
        for kind in [
            DispatchMouseEventType::MouseMoved,
            DispatchMouseEventType::MousePressed,
            DispatchMouseEventType::MouseReleased,
        ] {
            self.page.execute(mouse(kind).build().map_err(anyhow::Error::msg)?).await?;
        }
        Ok(())
    }

    /// Remembers the document, to know the next one.
    async fn mark(&self) -> anyhow::Result<()> {
        self.ask::<bool>("(document.documentElement.dataset.left = 'yes') === 'yes'").await?;
        Ok(())
    }

    async fn left(&self) -> anyhow::Result<()> {
        self.until("!document.documentElement.dataset.left && document.readyState === 'complete'").await
    }

    /// Clicks on what leads to another page, and waits until that is there.
    pub(crate) async fn follow(&self, selector: &str) -> anyhow::Result<()> {
        self.mark().await?;
        self.click(selector).await?;
        self.left().await.with_context(|| format!("{selector} leads nowhere"))
    }

    /// Presses Enter, which leads to another page, and waits until that is there.
    pub(crate) async fn enter(&self) -> anyhow::Result<()> {
        self.mark().await?;
        self.press("Enter").await?;
        self.left().await.context("Enter leads nowhere")
    }

    /// Waits until the page has brought what it shows up to date.
    pub(crate) async fn renewed(&self) -> anyhow::Result<()> {
        self.ask::<Option<bool>>("void (document.querySelector('#live').dataset.old = 'yes')").await?;
        self.until("!document.querySelector('#live').dataset.old").await
    }

    /// Goes back, as by the browser's button.
    pub(crate) async fn back(&self) -> anyhow::Result<()> {
        let here = self.url().await?;
        self.ask::<Option<bool>>("void history.back()").await?;
        self.until(&format!("location.href !== {} && document.readyState === 'complete'", json!(here))).await
    }

    /// Clicks into a field and writes into it, in place of what is there.
    pub(crate) async fn fill(&self, selector: &str, text: &str) -> anyhow::Result<()> {
        self.click(selector).await?;
        self.ask::<Option<bool>>(&format!("void document.querySelector({}).select()", json!(selector)))
            .await?;
        self.page.execute(InsertTextParams::new(text)).await?;
        Ok(())
    }

    /// Presses a key: `Tab`, `Enter`, or a letter.
    pub(crate) async fn press(&self, key: &str) -> anyhow::Result<()> {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            other => (0, Some(other)),
        };
        let event = |kind| {
            let mut event =
                DispatchKeyEventParams::builder().r#type(kind).key(key).windows_virtual_key_code(code);
            if code != 0 {
                event = event.code(key);
            }
            event
        };
        let down = match text {
            Some(text) => event(DispatchKeyEventType::KeyDown).text(text),
            None => event(DispatchKeyEventType::RawKeyDown),
        };
        for event in [down, event(DispatchKeyEventType::KeyUp)] {
            self.page.execute(event.build().map_err(anyhow::Error::msg)?).await?;
        }
        Ok(())
    }

    /// Types a text, key by key, into what has the focus.
    pub(crate) async fn write(&self, text: &str) -> anyhow::Result<()> {
        for letter in text.chars() {
            self.press(&letter.to_string()).await?;
        }
        Ok(())
    }

    /// Saves a PNG of what is seen.
    pub(crate) async fn picture(&self, file: &Path) -> anyhow::Result<()> {
        let picture = ScreenshotParams::builder().format(CaptureScreenshotFormat::Png).build();
        let bytes = self.page.screenshot(picture).await?;
        std::fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Closes it.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.page.close().await?;
        Ok(())
    }
}

fn lock(traffic: &Mutex<Traffic>) -> std::sync::MutexGuard<'_, Traffic> {
    traffic.lock().unwrap_or_else(PoisonError::into_inner)
}
