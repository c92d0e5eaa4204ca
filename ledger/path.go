package ledger

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// A path is bytes; JSON is UTF-8. A path that is not UTF-8 goes into
// "path_escaped" instead of "path", with % and every byte outside printable
// ASCII written %XX. Two names, so that a path which merely looks escaped
// stays what it is.

type plainResource Resource // without the methods

type wireResource struct {
	plainResource
	Escaped string `json:"path_escaped,omitempty"`
}

// MarshalJSON writes a path that is not UTF-8 without loss.
func (r Resource) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(r.Path) {
		return json.Marshal(plainResource(r))
	}
	w := wireResource{plainResource: plainResource(r), Escaped: escapePath(r.Path)}
	w.Path = ""
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *Resource) UnmarshalJSON(b []byte) error {
	var w wireResource
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	return w.into(r)
}

func (w *wireResource) into(r *Resource) error {
	*r = Resource(w.plainResource)
	if w.Escaped == "" {
		return nil
	}
	p, err := unescapePath(w.Escaped)
	if err != nil {
		return err
	}
	r.Path = p
	return nil
}

func escapePath(p string) string {
	const digits = "0123456789ABCDEF"
	out := make([]byte, 0, len(p)+16)
	for i := 0; i < len(p); i++ {
		if c := p[i]; c <= 0x20 || c >= 0x7f || c == '%' {
			out = append(out, '%', digits[c>>4], digits[c&15])
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

func unescapePath(s string) (string, error) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			out = append(out, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errors.New("a path's escape is cut off")
		}
		b, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", errors.New("a path's escape is no hexadecimal number")
		}
		out = append(out, b[0])
		i += 2
	}
	return string(out), nil
}
