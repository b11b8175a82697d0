package watch

import _ "embed"

//go:embed images.schema.json
var schema []byte

// Schema is the JSON Schema (draft 2020-12) of a watch list. What depends on several
// keys only [Load] finds.
func Schema() []byte { return append([]byte(nil), schema...) }
