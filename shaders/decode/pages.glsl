// Where keys and values lie in pages. A trip's keys lie in one page where pages are of whole trips; its place is then looked
// up once, a trip before it is needed.

bool page_holds_trips;
uint k_page_start = 0u, v_page_start = 0u;  // added to a key's place, in words of 16 bytes

void begin_pages(uint first) {
    if (on(PAGED)) page_holds_trips = parameter(PAGE_KEYS) % uint(KEYS) == 0u && (x_first_key + first) % uint(KEYS) == 0u;
}

void find_page(uint first, uint last) {
    if (!on(PAGED) || !page_holds_trips) return;
    uint whole = x_first_key + min(first, last), size = parameter(PAGE_KEYS);
    uint page = extra_data[parameter(PAGES) + x_batch * parameter(PAGES_BATCH) + whole / size];
    uint before = x_first_key - whole / size * size;  // wraps around, and what it is added to wraps back
    k_page_start = page * (parameter(K_PAGE) / 8u) + before * k_stride;
    v_page_start = page * (parameter(V_PAGE) / 8u) + before * v_stride;
}
#define FIND_PAGE(first, last) find_page(first, last)

// Words of 16 bytes from the first key's row to that of a key of the trip that find_page() was called for.
uint k_key(uint key, uint stride) {
    if (on(PAGED) && !page_holds_trips) return K_PLACE(key) / 8u;
    return k_page_start + key * stride;
}
uint v_key(uint key, uint stride) {
    if (on(PAGED) && !page_holds_trips) return V_PLACE(key) / 8u;
    return v_page_start + key * stride;
}
#define K_KEY(key, stride) k_key(key, stride)
#define V_KEY(key, stride) v_key(key, stride)
// Of any key.
#define V_AGAIN(key, stride) (on(PAGED) ? V_PLACE(key) / 8u : (key) * stride)
