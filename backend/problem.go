package backend

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const problemType = "application/problem+json"

// Problem is a failure as an RFC 9457 problem document.
type Problem struct {
	Type     string      `json:"type"`
	Title    string      `json:"title"`
	Status   int         `json:"status"`
	Detail   string      `json:"detail"`
	Instance string      `json:"instance,omitempty"` // names the request in the log
	Code     policy.Code `json:"code"`
	Hint     string      `json:"hint"`
	// Fields and Items are safe details: ids, names inside the workspace, numbers.
	Fields map[string]string       `json:"fields,omitempty"`
	Items  []policy.DiagnosticItem `json:"items,omitempty"`
}

// problemOf describes err for a browser. Codes that the catalog does not have are
// the Runtime's affairs: their text stays in the log.
func (b *Backend) problemOf(err error) Problem {
	d := diagnose(err)
	info, known := catalogIndex[d.Code]
	if !known {
		d = refuse(CodeRuntimeFailed, "the Runtime could not do it: %s", d.Code)
		info = catalogIndex[CodeRuntimeFailed]
	}
	p := Problem{
		Type: "urn:yoi:diagnostic:" + string(d.Code), Title: info.Title, Status: info.Status,
		Detail: b.scrub(d.Message), Code: d.Code, Hint: info.Hint,
	}
	for k, v := range d.Fields {
		if p.Fields == nil {
			p.Fields = make(map[string]string)
		}
		p.Fields[k] = b.scrub(v)
	}
	for _, i := range d.Items {
		p.Items = append(p.Items, policy.DiagnosticItem{Kind: i.Kind, Name: b.scrub(i.Name)})
	}
	return p
}

func diagnose(err error) *policy.Diagnostic {
	var d *policy.Diagnostic
	switch {
	case errors.As(err, &d) && d.Code == policy.CodeUnavailable:
		return refuse(CodeRuntimeUnreachable, "the Runtime does not answer").Because(err)
	case d != nil:
		return d
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return refuse(policy.CodeCanceled, "the request ended before it was done").Because(err)
	}
	return policy.AsDiagnostic(err)
}

// private collects the texts that no answer may hold: what the configuration says
// about the host. A Runtime's messages never have them; should one, it is cut.
func (c Config) private() []string {
	list := []string{c.Store, filepath.Dir(c.Store)}
	for _, r := range c.Runtimes {
		list = append(list, r.Socket, filepath.Dir(r.Socket))
	}
	for _, w := range c.Workspaces {
		for _, r := range w.Repositories {
			list = append(list, r.Source)
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		list = append(list, home)
	}
	list = slices.DeleteFunc(list, func(s string) bool { return len(s) < 4 }) // "/", "/run"
	slices.SortFunc(list, longestFirst)
	return slices.Compact(list)
}

func longestFirst(a, b string) int {
	if n := len(b) - len(a); n != 0 {
		return n
	}
	return strings.Compare(a, b)
}

// scrub takes private texts out of what is shown.
func (b *Backend) scrub(s string) string {
	for _, p := range b.settings().private {
		if strings.Contains(s, p) {
			s = strings.ReplaceAll(s, p, "…")
		}
	}
	return s
}

// scrubbed is diagnostics as warnings that go along with a summary.
func (b *Backend) scrubbed(list []policy.Diagnostic) []Notice {
	var out []Notice
	for _, d := range list {
		n := Notice{Code: string(d.Code), Severity: string(d.Severity), Message: b.scrub(d.Message), Hint: ""}
		if info, ok := catalogIndex[d.Code]; ok {
			n.Hint = info.Hint
		}
		out = append(out, n)
	}
	return out
}
