package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const (
	problemType = "application/problem+json"
	jsonType    = "application/json"
	typePrefix  = "urn:yoi:diagnostic:"
)

// Problem is a diagnostic as an RFC 9457 problem document.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Instance names the request in the daemon's log.
	Instance string            `json:"instance,omitempty"`
	Code     policy.Code       `json:"code"`
	Hint     string            `json:"hint,omitempty"`
	Op       string            `json:"op,omitempty"`
	Fields   map[string]string `json:"fields,omitempty"`
	// Items are what Detail counts, the first of them.
	Items []policy.DiagnosticItem `json:"items,omitempty"`
}

// ProblemOf describes err. The cause stays behind: it may name host paths.
func ProblemOf(err error) Problem {
	d := diagnose(err)
	info := policy.Describe(d.Code)
	status := info.Status
	if status < 400 { // a code that is a warning elsewhere, refused here
		status = http.StatusInternalServerError
	}
	return Problem{
		Type:   typePrefix + string(d.Code),
		Title:  info.Title,
		Status: status,
		Detail: d.Message,
		Code:   d.Code,
		Hint:   d.Hint,
		Op:     d.Op,
		Fields: d.Fields,
		Items:  d.Items,
	}
}

// Diagnostic is the way back.
func (p Problem) Diagnostic() *policy.Diagnostic {
	return &policy.Diagnostic{
		Code:     p.Code,
		Severity: policy.SeverityError,
		Op:       p.Op,
		Message:  p.Detail,
		Hint:     p.Hint,
		Fields:   p.Fields,
		Items:    p.Items,
	}
}

// diagnose is policy.AsDiagnostic, and knows a canceled context.
func diagnose(err error) *policy.Diagnostic {
	var d *policy.Diagnostic
	if !errors.As(err, &d) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return policy.Errorf(policy.CodeCanceled, "api.call", "the operation was canceled before it was done").Because(err)
	}
	return policy.AsDiagnostic(err)
}

// parseProblem reads a problem document that another process wrote.
func parseProblem(b []byte) (*policy.Diagnostic, error) {
	var p Problem
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, err
	}
	if p.Code == "" {
		p.Code = policy.Code(strings.TrimPrefix(p.Type, typePrefix))
	}
	if p.Code == "" || strings.Contains(string(p.Code), ":") {
		return nil, errors.New("a problem document without a code")
	}
	return p.Diagnostic(), nil
}
