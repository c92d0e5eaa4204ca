package api

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// Marshal encodes v as the API does: a nil list is [], a nil map {}, and text
// is not HTML-escaped. The command line prints the same documents.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if v != nil {
		v = filled(reflect.ValueOf(v)).Interface()
	}
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// filled returns a copy of v without nil lists and maps. What v points to is
// copied too, since it may be shared with another request. Omitted fields stay
// omitted: encoding/json drops an empty list as it does a nil one.
func filled(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(filled(v.Elem()))
		return p
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 && !v.IsNil() {
			return v // megabytes of a patch, byte by byte
		}
		s := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			s.Index(i).Set(filled(v.Index(i)))
		}
		return s
	case reflect.Map:
		if v.IsNil() {
			return reflect.MakeMap(v.Type())
		}
	case reflect.Struct:
		s := reflect.New(v.Type()).Elem()
		s.Set(v)
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				s.Field(i).Set(filled(v.Field(i)))
			}
		}
		return s
	}
	return v
}
