package api

import (
	"reflect"
	"unicode/utf8"

	"yoi.dev/yoi-runtime/policy"
)

// checkText refuses a request with text that is not UTF-8: JSON cannot carry
// it, and encoding/json would send U+FFFD in its place, so a command would run
// with other arguments than were given.
func checkText(v any) error {
	if textIsUTF8(reflect.ValueOf(v)) {
		return nil
	}
	return policy.Errorf(policy.CodeBadRequest, "api.client", "the request holds bytes that are not UTF-8, which the API cannot carry").
		WithHint("Run it without a daemon: yoi run takes any bytes.")
}

func textIsUTF8(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || textIsUTF8(v.Elem())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return true // base64
		}
		for i := range v.Len() {
			if !textIsUTF8(v.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if !textIsUTF8(it.Key()) || !textIsUTF8(it.Value()) {
				return false
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !textIsUTF8(v.Field(i)) {
				return false
			}
		}
	}
	return true
}
