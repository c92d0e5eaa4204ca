package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Severity says whether a diagnostic stopped the work.
type Severity string

const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// Diagnostic is a typed refusal or warning. Everything but Cause is safe to
// show to a Worker or a Browser: it never holds a host path, an environment
// value or a secret. Cause is for the operator's log only and is not encoded.
type Diagnostic struct {
	// Code is stable for ever; see Catalog.
	Code Code `json:"code"`
	// Severity is error unless the work went on all the same.
	Severity Severity `json:"severity"`
	// Op names what was being done, as package.operation.
	Op string `json:"op,omitempty"`
	// Message is one sentence: what failed and why.
	Message string `json:"message"`
	// Hint says what to do next.
	Hint string `json:"hint,omitempty"`
	// Fields are safe details: ids, names inside the workspace, numbers.
	Fields map[string]string `json:"fields,omitempty"`
	// Items are what the message counts, the first of them. See Item.
	Items []DiagnosticItem `json:"items,omitempty"`
	// Cause is the wrapped error. It may name host paths.
	Cause error `json:"-"`
}

// Errorf makes an error diagnostic for code. The hint is the catalog's.
// The message must be safe; put what is not into the cause with Because.
func Errorf(code Code, op, format string, args ...any) *Diagnostic {
	return &Diagnostic{
		Code:     code,
		Severity: SeverityError,
		Op:       op,
		Message:  fmt.Sprintf(format, args...),
		Hint:     Describe(code).Hint,
	}
}

// Warnf is Errorf with severity warning.
func Warnf(code Code, op, format string, args ...any) *Diagnostic {
	d := Errorf(code, op, format, args...)
	d.Severity = SeverityWarning
	return d
}

// Because sets the wrapped cause and returns d.
func (d *Diagnostic) Because(err error) *Diagnostic {
	d.Cause = err
	return d
}

// With adds a safe field and returns d. Control characters and invalid UTF-8
// in value are quoted, so a hostile file name cannot reach a terminal raw.
func (d *Diagnostic) With(key, value string) *Diagnostic {
	if d.Fields == nil {
		d.Fields = make(map[string]string)
	}
	d.Fields[key] = Printable(value)
	return d
}

// DiagnosticItem is one of several things that a diagnostic is about: its kind
// in one word ("untracked", "operation") and its name, as safe as a field.
type DiagnosticItem struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// maxItems bounds what a tree full of changes can put into a document.
const maxItems = 100

// Item adds to d.Items and returns d. Beyond the first hundred nothing is added:
// the fields say how many there are.
func (d *Diagnostic) Item(kind, name string) *Diagnostic {
	if len(d.Items) < maxItems {
		d.Items = append(d.Items, DiagnosticItem{kind, Printable(name)})
	}
	return d
}

// WithHint replaces the catalog's hint and returns d.
func (d *Diagnostic) WithHint(format string, args ...any) *Diagnostic {
	d.Hint = fmt.Sprintf(format, args...)
	return d
}

// Error is the operator's one-line form: code, message and cause.
func (d *Diagnostic) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", d.Code, d.Message)
	for _, k := range slices.Sorted(maps.Keys(d.Fields)) {
		fmt.Fprintf(&b, " %s=%q", k, d.Fields[k])
	}
	if d.Cause != nil {
		fmt.Fprintf(&b, ": %v", d.Cause)
	}
	return b.String()
}

func (d *Diagnostic) Unwrap() error { return d.Cause }

// Is makes errors.Is(err, policy.CodeX) true for a diagnostic of that code.
func (d *Diagnostic) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == d.Code
}

// AsDiagnostic finds the diagnostic in err's chain. An error without one is
// wrapped as CodeInternal, so that callers always have a code to show.
func AsDiagnostic(err error) *Diagnostic {
	if err == nil {
		return nil
	}
	var d *Diagnostic
	if errors.As(err, &d) {
		return d
	}
	return Errorf(CodeInternal, "", "an unexpected error stopped the operation").Because(err)
}

// DecodeDiagnostic reads the JSON form, as sent over a socket.
func DecodeDiagnostic(b []byte) (*Diagnostic, error) {
	var d Diagnostic
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, err
	}
	if d.Code == "" {
		return nil, errors.New("a diagnostic without a code")
	}
	return &d, nil
}

// Printable returns s with every byte that could act on a terminal, or is not
// UTF-8, written as a Go escape. Safe text is returned unchanged.
func Printable(s string) string {
	safe := true
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if (r == utf8.RuneError && n == 1) || !unicode.IsPrint(r) {
			safe = false
			break
		}
		i += n
	}
	if safe {
		return s
	}
	q := fmt.Sprintf("%q", s)
	return q[1 : len(q)-1]
}
