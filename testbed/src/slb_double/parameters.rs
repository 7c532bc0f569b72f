//! The parameters of a call.

/// The decoded pairs of a query or a form.
pub(super) fn pairs(text: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), decode(value))
    };
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs.map(pair).collect()
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                let digits = std::str::from_utf8(&digits).unwrap_or("00");
                u8::from_str_radix(digits, 16).unwrap_or(0)
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The value of a parameter.
pub(super) fn value<'a>(parameters: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = parameters.iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str())
}
