//! The bill of materials (SBOM), as CycloneDX 1.6: which crates are in the programs.

use serde_json::{Value, json};

use super::crates::{Crate, Crates};
use super::source::Source;

/// The document; the same for the same commit.
pub(super) fn document(source: &Source, crates: &Crates) -> anyhow::Result<String> {
    let product = crates.product()?;
    let time = i64::try_from(source.time).ok().and_then(|time| chrono::DateTime::from_timestamp(time, 0));
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.map(|time| time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)),
            "lifecycles": [{ "phase": "build" }],
            "component": component(product, "application"),
        },
        "components": crates.others().map(|one| component(one, "library")).collect::<Vec<_>>(),
        "dependencies": std::iter::once(product).chain(crates.others()).map(dependency).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn component(one: &Crate, kind: &str) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": reference(&one.name, &one.version),
        "purl": reference(&one.name, &one.version),
        "name": one.name,
        "version": one.version,
        "licenses": [{ "expression": one.license }],
    });
    if let Some(description) = &one.description {
        component["description"] = json!(description);
    }
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &one.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

fn dependency(one: &Crate) -> Value {
    let uses: Vec<String> = one.uses.iter().map(|(name, version)| reference(name, version)).collect();
    json!({ "ref": reference(&one.name, &one.version), "dependsOn": uses })
}

/// Its package URL. Of what a version may hold, only `+` is escaped there.
fn reference(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}
