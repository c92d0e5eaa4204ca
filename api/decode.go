package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"unicode/utf8"

	"yoi.dev/yoi-runtime/policy"
)

// maxDepth is far more than any request needs, and little enough that nesting
// costs nothing.
const maxDepth = 16

// decodeStrict reads exactly one JSON object into dst, a pointer to a request
// struct. encoding/json alone is too kind for a boundary: it takes a repeated
// or differently cased name (the last one wins, so two readers of one request
// may see two requests), turns broken text into U+FFFD, and reads null as
// "leave it". Each of these is refused.
func decodeStrict(body []byte, dst any) error {
	if !utf8.Valid(body) {
		return badRequest("the body is not UTF-8")
	}
	if loneSurrogate(body) {
		return badRequest(`the body holds half of a \u surrogate pair`)
	}
	s := shape{dec: json.NewDecoder(bytes.NewReader(body))}
	s.dec.UseNumber()
	if err := s.value(reflect.TypeOf(dst), ""); err != nil {
		return err
	}
	if s.dec.More() || len(bytes.TrimLeft(body[s.dec.InputOffset():], " \t\r\n")) > 0 {
		return badRequest("something follows the JSON document")
	}
	if err := json.Unmarshal(body, dst); err != nil {
		return jsonError(err, "")
	}
	return nil
}

func badRequest(format string, args ...any) *policy.Diagnostic {
	return policy.Errorf(policy.CodeBadRequest, "api.decode", format, args...)
}

// jsonError words an encoding/json error without its Go type names.
func jsonError(err error, at string) error {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		if t.Field != "" {
			at = t.Field
		}
		return badRequest("a %s does not fit there", t.Value).With("field", at)
	}
	d := badRequest("the body is not a whole JSON document").Because(err)
	if at != "" {
		d = d.With("field", at)
	}
	return d
}

// loneSurrogate reports a \uD800–\uDFFF escape without its other half.
func loneSurrogate(b []byte) bool {
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		r, ok := escapedUnit(b[i:])
		switch {
		case !ok:
			i++ // a short escape such as \\ or \"
		case r >= 0xd800 && r < 0xdc00:
			low, ok := escapedUnit(b[i+6:])
			if !ok || low < 0xdc00 || low > 0xdfff {
				return true
			}
			i += 11
		case r >= 0xdc00 && r <= 0xdfff:
			return true
		default:
			i += 5
		}
	}
	return false
}

// escapedUnit reads a \u escape of four hex digits at the start of b.
func escapedUnit(b []byte) (unit int, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	for _, c := range b[2:6] {
		d := strings.IndexByte("0123456789abcdef", c|0x20)
		if d < 0 {
			return 0, false
		}
		unit = unit<<4 | d
	}
	return unit, true
}

// DecodeStrict reads exactly one JSON object into dst, a pointer to a request
// struct, as this API does: for other servers that hold the same boundary.
func DecodeStrict(body []byte, dst any) error { return decodeStrict(body, dst) }
