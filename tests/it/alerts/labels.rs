//! Which labels an expression's result has, and whether all that it names is there: Prometheus itself takes every name, and finds
//! nothing.

use std::collections::BTreeSet;

use promql_parser::label::{MatchOp, Matchers};
use promql_parser::parser::value::ValueType;
use promql_parser::parser::{
    AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality, VectorSelector,
};

use crate::support::exposition::Series;

/// Names of labels.
pub(super) type Labels = BTreeSet<String>;

/// The labels of what the expression gives.
///
/// # Errors
/// Names the series or label that none of `known` has.
pub(super) fn labels(expression: &str, known: &[Series]) -> Result<Labels, String> {
    let parsed =
        promql_parser::parser::parse(expression).map_err(|error| format!("{expression}: {error}"))?;
    Reader { known }.labels(&parsed).map_err(|problem| format!("{problem}, in: {expression}"))
}

/// The names of the series that the expression selects.
pub(super) fn selected(expression: &str) -> BTreeSet<String> {
    struct Names(BTreeSet<String>);
    impl promql_parser::util::ExprVisitor for Names {
        type Error = std::convert::Infallible;

        fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Self::Error> {
            match expression {
                Expr::VectorSelector(selector) => self.0.extend(selector.name.clone()),
                Expr::MatrixSelector(selector) => self.0.extend(selector.vs.name.clone()),
                _ => {}
            }
            Ok(true)
        }
    }
    let parsed = promql_parser::parser::parse(expression).expect(expression);
    let mut names = Names(BTreeSet::new());
    promql_parser::util::walk_expr(&mut names, &parsed).expect("infallible");
    names.0
}

struct Reader<'a> {
    known: &'a [Series],
}

impl Reader<'_> {
    fn labels(&self, expression: &Expr) -> Result<Labels, String> {
        match expression {
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Ok(Labels::new()),
            Expr::Paren(paren) => self.labels(&paren.expr),
            Expr::Unary(unary) => self.labels(&unary.expr),
            Expr::Subquery(subquery) => self.labels(&subquery.expr),
            Expr::VectorSelector(selector) => self.selector(selector),
            Expr::MatrixSelector(selector) => self.selector(&selector.vs),
            Expr::Aggregate(aggregate) => self.aggregate(aggregate),
            Expr::Binary(binary) => self.binary(binary),
            Expr::Call(call) => self.call(call),
            Expr::Extension(_) => Err("an extension of the language".to_owned()),
        }
    }

    /// Some series that is there has the name and the labels, and matches.
    fn selector(&self, selector: &VectorSelector) -> Result<Labels, String> {
        let name = selector.name.as_deref().ok_or("a selector without a name")?;
        let Matchers { matchers, or_matchers } = &selector.matchers;
        if !or_matchers.is_empty() {
            return Err(format!("{name} has matchers with `or`"));
        }
        let of_name: Vec<&Series> = self.known.iter().filter(|series| series.name == name).collect();
        let first = of_name.first().ok_or_else(|| format!("no program tells {name}"))?;
        if let Some(matcher) = matchers.iter().find(|matcher| !first.labels.contains_key(&matcher.name)) {
            return Err(format!("{name} has no label {}", matcher.name));
        }
        let is_there = |series: &&Series| {
            matchers.iter().all(|matcher| {
                // What is left out need not be there.
                matches!(matcher.op, MatchOp::NotEqual | MatchOp::NotRe(_))
                    || matcher.is_match(&series.labels[&matcher.name])
            })
        };
        if !of_name.iter().any(is_there) {
            let values: Vec<String> = matchers.iter().map(|matcher| matcher.to_string()).collect();
            return Err(format!("no series of {name} matches {}", values.join(", ")));
        }
        Ok(first.labels.keys().cloned().collect())
    }

    fn aggregate(&self, aggregate: &AggregateExpr) -> Result<Labels, String> {
        let inner = self.labels(&aggregate.expr)?;
        match &aggregate.modifier {
            None => Ok(Labels::new()),
            Some(LabelModifier::Include(by)) => all_of(&by.labels, &inner, "by"),
            Some(LabelModifier::Exclude(without)) => {
                let left_out = all_of(&without.labels, &inner, "without")?;
                Ok(&inner - &left_out)
            }
        }
    }

    fn binary(&self, binary: &BinaryExpr) -> Result<Labels, String> {
        let (left, right) = (self.labels(&binary.lhs)?, self.labels(&binary.rhs)?);
        if binary.lhs.value_type() == ValueType::Scalar {
            return Ok(right);
        }
        if binary.rhs.value_type() == ValueType::Scalar {
            return Ok(left);
        }
        let modifier = binary.modifier.as_ref();
        let matching = modifier.and_then(|modifier| modifier.matching.as_ref());
        let compared = match matching {
            None if left != right => {
                return Err(format!("{left:?} never equals {right:?}, without `on`"));
            }
            None => left.clone(),
            Some(LabelModifier::Include(on)) => {
                all_of(&on.labels, &left, "on, left")?;
                all_of(&on.labels, &right, "on, right")?
            }
            Some(LabelModifier::Exclude(ignoring)) => {
                let left_out = all_of(&ignoring.labels, &(&left | &right), "ignoring")?;
                let compared = &left - &left_out;
                if compared != &right - &left_out {
                    return Err(format!("{left:?} never equals {right:?}, ignoring {left_out:?}"));
                }
                compared
            }
        };
        match modifier.map(|modifier| &modifier.card) {
            // `and` and `unless` keep the left side's; `or` has those of both.
            Some(VectorMatchCardinality::ManyToMany) if binary.op.to_string() == "or" => Ok(&left | &right),
            Some(VectorMatchCardinality::ManyToMany) => Ok(left),
            None | Some(VectorMatchCardinality::OneToOne) => Ok(compared),
            Some(VectorMatchCardinality::ManyToOne(more)) => {
                Ok(&left | &all_of(&more.labels, &right, "group_left")?)
            }
            Some(VectorMatchCardinality::OneToMany(more)) => {
                Ok(&right | &all_of(&more.labels, &left, "group_right")?)
            }
        }
    }

    fn call(&self, call: &Call) -> Result<Labels, String> {
        let mut of_vectors = Labels::new();
        for argument in &call.args.args {
            of_vectors.extend(self.labels(argument)?);
        }
        match call.func.name {
            "histogram_quantile" => {
                if !of_vectors.remove("le") {
                    return Err("histogram_quantile of what has no label le".to_owned());
                }
                Ok(of_vectors)
            }
            "absent" | "time" | "vector" => Ok(Labels::new()),
            "rate" | "increase" | "max_over_time" | "present_over_time" => Ok(of_vectors),
            other => Err(format!("this test does not know what {other} does to labels")),
        }
    }
}

fn all_of(names: &[String], there: &Labels, what: &str) -> Result<Labels, String> {
    match names.iter().find(|name| !there.contains(*name)) {
        Some(missing) => Err(format!("{what} ({missing}): only {there:?} are there")),
        None => Ok(names.iter().cloned().collect()),
    }
}
