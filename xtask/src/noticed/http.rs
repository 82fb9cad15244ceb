//! One GET.

use std::time::Duration;

/// What came back.
pub(super) struct Answer {
    pub(super) status: u16,
    /// The first cookie that is set.
    pub(super) cookie: Option<String>,
    pub(super) body: String,
}

/// Sends a form as a page of that origin does; no redirect is followed.
pub(super) async fn post(url: &str, origin: &str, form: &str, limit: Duration) -> anyhow::Result<Answer> {
    let (url, origin, form) = (url.to_owned(), origin.to_owned(), form.to_owned());
    tokio::task::spawn_blocking(move || {
        let request = agent(limit).post(&url).header("Origin", &origin);
        answer(request.content_type("application/x-www-form-urlencoded").send(form)?)
    })
    .await?
}

/// Gets a page; no redirect is followed.
pub(super) async fn get(url: &str, cookie: Option<&str>, limit: Duration) -> anyhow::Result<Answer> {
    let (url, cookie) = (url.to_owned(), cookie.map(str::to_owned));
    tokio::task::spawn_blocking(move || {
        let mut request = agent(limit).get(&url);
        if let Some(cookie) = &cookie {
            request = request.header("Cookie", cookie);
        }
        answer(request.call()?)
    })
    .await?
}

fn agent(limit: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(limit))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .build();
    ureq::Agent::new_with_config(config)
}

fn answer(mut answer: ureq::http::Response<ureq::Body>) -> anyhow::Result<Answer> {
    let cookie = answer.headers().get("set-cookie").and_then(|value| value.to_str().ok());
    let cookie = cookie.and_then(|value| value.split(';').next()).map(str::to_owned);
    Ok(Answer { status: answer.status().as_u16(), cookie, body: answer.body_mut().read_to_string()? })
}
