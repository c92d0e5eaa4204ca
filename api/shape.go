package api

import (
	"encoding/json"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// shape walks a JSON document beside the Go type it is meant for, before
// anything is decoded.
type shape struct {
	dec   *json.Decoder
	depth int
}

// value checks the next value against t; t nil takes anything. at is the
// value's place in the document, for the message.
func (s *shape) value(t reflect.Type, at string) error {
	tok, err := s.dec.Token()
	if err != nil {
		return tokenError(err, at)
	}
	if tok == nil {
		return badRequest("null is no value here: leave the field out").With("field", at)
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	if s.depth++; s.depth > maxDepth {
		return badRequest("the body is nested deeper than %d", maxDepth)
	}
	defer func() { s.depth-- }()
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if delim == '{' {
		return s.object(t, at)
	}
	return s.array(t, at)
}

func (s *shape) object(t reflect.Type, at string) error {
	fields := fieldsOf(t)
	seen := make(map[string]bool)
	for s.dec.More() {
		tok, err := s.dec.Token()
		if err != nil {
			return tokenError(err, at)
		}
		name, _ := tok.(string)
		place := join(at, name)
		if seen[name] {
			return badRequest("a field is given twice").With("field", place)
		}
		seen[name] = true
		var elem reflect.Type
		switch {
		case fields != nil:
			ft, known := fields[name]
			if !known {
				return badRequest("there is no such field").With("field", place)
			}
			elem = ft
		case t != nil && t.Kind() == reflect.Map:
			elem = t.Elem()
		}
		if err := s.value(elem, place); err != nil {
			return err
		}
	}
	return s.end(at)
}

func (s *shape) array(t reflect.Type, at string) error {
	var elem reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		elem = t.Elem()
	}
	for i := 0; s.dec.More(); i++ {
		if err := s.value(elem, at+"["+strconv.Itoa(i)+"]"); err != nil {
			return err
		}
	}
	return s.end(at)
}

// end takes the closing brace or bracket.
func (s *shape) end(at string) error {
	_, err := s.dec.Token()
	return tokenError(err, at)
}

func tokenError(err error, at string) error {
	if err == nil {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return jsonError(err, at)
}

var timeType = reflect.TypeFor[time.Time]()

// fieldsOf returns the JSON names of a struct's fields, nil for other types.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if t == nil || t.Kind() != reflect.Struct || t == timeType {
		return nil
	}
	fields := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			fields[name] = f.Type
		}
	}
	return fields
}

// join keeps a hostile name from filling the log.
func join(at, name string) string {
	if len(name) > 64 {
		name = name[:64] + "…"
	}
	name = policy.Printable(name)
	if at == "" {
		return name
	}
	return at + "." + name
}
