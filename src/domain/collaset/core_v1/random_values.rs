//! Generates random values of a type, for tests.

use serde_json::{Map, Value, json};

use super::{Kind, struct_fields};

/// A sequence of pseudo-random numbers (SplitMix64); the field is its state.
pub struct RandomValues(pub u64);

impl RandomValues {
    /// Returns the next number, below `bound`.
    pub fn next_below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn choose_value(&mut self, choice: &[Value]) -> Value {
        choice[self.next_below(choice.len() as u64) as usize].clone()
    }

    /// Returns a random value of a type. It may contain empty values, zero values and nulls.
    pub fn random_value(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Text => self.choose_value(&[json!(""), json!("a"), json!("b<&>"), json!("c")]),
            Kind::Bool => self.choose_value(&[json!(false), json!(true)]),
            Kind::Int => self.choose_value(&[json!(0), json!(1), json!(80)]),
            Kind::IntOrString => {
                self.choose_value(&[json!(0), json!(80), json!("80"), json!("http")])
            }
            Kind::Quantity => self.choose_value(&[
                json!("0"),
                json!(1),
                json!(0.5),
                json!("1000m"),
                json!("1024Mi"),
                json!("1.5Gi"),
                json!("7Gi"),
                json!("1e3"),
            ]),
            Kind::Time => Value::Null,
            Kind::Pointer(inner) => match self.next_below(4) {
                0 => Value::Null,
                _ => self.random_value(inner),
            },
            Kind::List(inner) => (0..self.next_below(3))
                .map(|_| self.random_value(inner))
                .collect(),
            Kind::Map(inner) => (0..self.next_below(3))
                .map(|i| (format!("k{i}"), self.random_value(inner)))
                .collect::<Map<_, _>>()
                .into(),
            Kind::Struct(name) => {
                let mut out = Map::new();
                for field in struct_fields(name) {
                    if field.always || self.next_below(5) == 0 {
                        out.insert(field.name.to_owned(), self.random_value(&field.kind));
                    }
                }
                out.into()
            }
        }
    }
}
