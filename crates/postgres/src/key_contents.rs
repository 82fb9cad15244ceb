//! Handlers' data in a key's row: a response, results of steps.

use std::sync::Arc;

use serde_json::Value;

use oncely_core::encryption::{Cipher, CipherError, Place, open_text};

/// A response and the results of steps, JSON as PostgreSQL writes it; and the bytes of an HTTP response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyContents {
    pub response: Option<String>,
    pub steps: Option<String>,
    pub http_headers: Option<String>,
    pub http_body: Option<Vec<u8>>,
}

impl KeyContents {
    /// Decrypts the encrypted parts. Parts that can't be decrypted stay unchanged: returns the reason for the first of them, or `None` if
    /// all were decrypted.
    pub fn decrypt(
        &mut self,
        cipher: Option<&Arc<dyn Cipher>>,
        tenant: &str,
        consumer: &str,
        key: &str,
    ) -> Option<String> {
        let mut unreadable = None;
        let mut opened = |place: &Place<'_>, stored: &str| match open_text(cipher, place, stored) {
            Ok(text) => text,
            Err(error) => {
                let _the_first: &mut CipherError = unreadable.get_or_insert(error);
                None
            }
        };
        if let Some(response) = &mut self.response
            && let Some(text) = opened(&Place::Response { tenant, consumer, key }, response)
        {
            *response = text;
        }
        let steps = self.steps.as_deref().and_then(|steps| serde_json::from_str::<Value>(steps).ok());
        if let Some(Value::Object(mut steps)) = steps {
            let mut is_changed = false;
            for (step, state) in &mut steps {
                let place = Place::StepResult { tenant, consumer, key, step };
                let Some(result) = state.get_mut("result") else { continue };
                if let Some(text) = opened(&place, &result.to_string()) {
                    *result = serde_json::from_str(&text).unwrap_or(Value::String(text));
                    is_changed = true;
                }
            }
            if is_changed {
                self.steps = Some(Value::Object(steps).to_string());
            }
        }
        unreadable.map(|error| error.to_string())
    }
}
