package servicetest

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/runtime"
)

// TestCannedValuesSetEveryField: a field that no answer sets would be lost on
// its way through the API without a test to see it.
func TestCannedValuesSetEveryField(t *testing.T) {
	svc := &Service{Logs: []byte("x")}
	set := map[string]bool{}
	for _, v := range answers(t, svc) {
		visit(v, set)
	}
	if len(set) < 150 {
		t.Fatalf("only %d fields were seen", len(set))
	}
	for field, ok := range set {
		if !ok {
			t.Errorf("no canned value sets %s", field)
		}
	}
}

// answers calls every method of the service.
func answers(t *testing.T, svc *Service) (out []reflect.Value) {
	t.Helper()
	v := reflect.ValueOf(svc)
	for m := range reflect.TypeFor[runtime.Service]().Methods() {
		method := v.MethodByName(m.Name)
		var in []reflect.Value
		for i := range method.Type().NumIn() {
			switch typ := method.Type().In(i); typ {
			case reflect.TypeFor[context.Context]():
				in = append(in, reflect.ValueOf(t.Context()))
			case reflect.TypeFor[io.Writer]():
				in = append(in, reflect.ValueOf(io.Discard))
			case reflect.TypeFor[io.Reader]():
				in = append(in, reflect.ValueOf(strings.NewReader("")))
			case reflect.TypeFor[func(runtime.Event) bool]():
				in = append(in, reflect.ValueOf(func(e runtime.Event) bool { out = append(out, reflect.ValueOf(e)); return true }))
			case reflect.TypeFor[func(runtime.LedgerRecord) bool]():
				in = append(in, reflect.ValueOf(func(r runtime.LedgerRecord) bool { out = append(out, reflect.ValueOf(r)); return true }))
			case reflect.TypeFor[runtime.GCRequest](): // the answer repeats it
				in = append(in, reflect.ValueOf(runtime.GCRequest{DryRun: true}))
			default:
				in = append(in, reflect.Zero(typ))
			}
		}
		for _, r := range method.Call(in) {
			if r.Type() == reflect.TypeFor[error]() {
				if !r.IsNil() {
					t.Fatalf("%s: %v", m.Name, r)
				}
				continue
			}
			out = append(out, r)
		}
	}
	return out
}

// visit notes which fields of which types are set somewhere.
func visit(v reflect.Value, set map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			visit(v.Elem(), set)
		}
	case reflect.Slice:
		for i := range v.Len() {
			visit(v.Index(i), set)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() || !strings.HasPrefix(v.Type().PkgPath(), "yoi.dev/") {
			return
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.Tag.Get("json") == "-" { // a diagnostic's cause, which stays here
				continue
			}
			name := v.Type().String() + "." + f.Name
			set[name] = set[name] || !v.Field(i).IsZero()
			visit(v.Field(i), set)
		}
	}
}
