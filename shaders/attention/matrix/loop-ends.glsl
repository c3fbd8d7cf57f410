// How main() begins where a loop goes over all tiles that some row sees: which rows and keys are the workgroup's.

    FIND_INVOCATION
    FIND_ROWS
    FIND_ENDS
    q_base = q_index(batch, FIRST_HEAD, ROW_START);
    k_base = k_index(batch, FIRST_HEAD, KEY_START);
    v_base = v_index(batch, FIRST_HEAD, KEY_START);
    end = KEYS_SEEN(first_row, min(first_row + ROWS, QUERIES) - 1u);  // keys from here on are seen by no row of this workgroup
